"""How a checkpoint's tensor becomes the one llama.cpp expects: pure rearrangements, named in the architecture table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.config import Config
from quantizer.errors import CheckpointError

__all__ = ["RowOrder", "unpermute_keys", "unpermute_queries", "unpermuted"]

# Config and number of rows -> the order in which to take the rows.
RowOrder: TypeAlias = Callable[[Config, int], npt.NDArray[np.intp]]


def unpermute_queries(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Row order of attn_q: see `unpermuted`."""
    return unpermuted(n_rows, config.integer("num_attention_heads"))


def unpermute_keys(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Row order of attn_k: see `unpermuted`."""
    return unpermuted(n_rows, config.integer("num_key_value_heads", "num_attention_heads"))


def unpermuted(n_rows: int, n_heads: int) -> npt.NDArray[np.intp]:
    """Interleave the two halves of each head's rows.

    transformers rotates the first half of a head against the second; llama.cpp's llama graph rotates neighbours.
    Raises CheckpointError when the rows are not so many heads.
    """
    if n_heads == 0 or n_rows % (2 * n_heads):
        raise CheckpointError(f"{n_rows} rows do not split into {n_heads} attention heads.", "Check config.json.")
    return np.arange(n_rows).reshape(n_heads, 2, -1).swapaxes(1, 2).reshape(-1)
