"""Rearrangements of a checkpoint's tensors into llama.cpp's layout: pure, named in the architecture table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.errors import CheckpointError

__all__ = [
    *("RowOrder", "ValueMap", "grouped_keys", "grouped_queries", "grouped_values", "negative_exponential"),
    *("plus_one", "positions_beyond_padding", "unpermute_keys", "unpermute_queries"),
]

# Config and number of rows -> the rows to take, in order.
RowOrder: TypeAlias = Callable[[Config, int], npt.NDArray[np.intp]]
# Stored values -> those that llama.cpp expects, one for one.
ValueMap: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def plus_one(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return norms that are stored as their distance from one."""
    return values + np.float32(1)


def negative_exponential(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return decay rates that are stored as logarithms."""
    return -np.exp(values)


def unpermute_queries(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return row order of attn_q: see `_unpermuted`."""
    return _unpermuted(n_rows, config.integer("num_attention_heads"))


def unpermute_keys(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return row order of attn_k: see `_unpermuted`."""
    return _unpermuted(n_rows, config.integer("num_key_value_heads", "num_attention_heads"))


def _unpermuted(n_rows: int, n_heads: int) -> npt.NDArray[np.intp]:
    """Interleave the two halves of each head's rows.

    transformers rotates the first half of a head against the second; llama.cpp's llama graph rotates neighbours.
    Raises CheckpointError when the rows are not so many heads.
    """
    if n_heads == 0 or n_rows % (2 * n_heads):
        raise CheckpointError(f"{n_rows} rows do not split into {n_heads} attention heads.", "Check config.json.")
    return np.arange(n_rows).reshape(n_heads, 2, -1).swapaxes(1, 2).reshape(-1)


def positions_beyond_padding(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return the positions of a text where those up to the padding token's id are unused."""
    return np.arange(config.integer("pad_token_id") + 1, n_rows)


def grouped_queries(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return the queries of a fused matrix, in llama.cpp's order: see `_groups` and `_unpermuted`."""
    rows = _groups(config, n_rows)[:, :-2].reshape(-1)
    return rows[unpermute_queries(config, len(rows))]


def grouped_keys(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return the keys of a fused matrix, in llama.cpp's order: see `_groups` and `_unpermuted`."""
    rows = _groups(config, n_rows)[:, -2].reshape(-1)
    return rows[unpermute_keys(config, len(rows))]


def grouped_values(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return the values of a fused matrix: see `_groups`."""
    return _groups(config, n_rows)[:, -1].reshape(-1)


def _groups(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return row numbers as [groups, heads of a group, rows of a head]: the queries that share a key, that key, its
    value.

    Raises CheckpointError when the rows are not so many heads.
    """
    n_groups = config.integer("num_key_value_heads", "num_attention_heads")
    n_heads = config.integer("num_attention_heads") + 2 * n_groups
    if n_groups == 0 or n_heads % n_groups or n_rows % n_heads:
        raise CheckpointError(f"{n_rows} rows do not split into {n_heads} attention heads.", "Check config.json.")
    return np.arange(n_rows).reshape(n_groups, n_heads // n_groups, -1)
