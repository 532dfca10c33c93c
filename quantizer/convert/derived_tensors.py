"""Tensors derived from others as they are read, in llama.cpp's layout: stacked, rearranged or computed.

The orders and the maps are pure, and named in the architecture table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import FileTensor, RearrangedTensor, RenamedTensor, SourceTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.write.dtype_conversion import to_float32

# Config and number of rows -> the rows to take, in order.
RowOrder: TypeAlias = Callable[[Config, int], npt.NDArray[np.intp]]
# Config and number of rows -> what each row, or all of them, is multiplied with.
RowFactors: TypeAlias = Callable[[Config, int], npt.NDArray[np.float32]]
# Stored values -> those that llama.cpp expects, one for one.
ValueMap: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
# All stored whole numbers of a tensor -> those that llama.cpp expects.
NumberMap: TypeAlias = Callable[[npt.NDArray[np.int64], Config], npt.NDArray[np.int64]]
_WHOLE_NUMBERS = {"I32": "<i4", "I64": "<i8"}


def plus_one(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return norms that are stored as their distance from one."""
    return values + np.float32(1)


def negative_exponential(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return decay rates that are stored as logarithms."""
    return -np.exp(values)


def unpermute_queries(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    return _unpermuted(n_rows, config.integer("num_attention_heads"))


def unpermute_keys(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    return _unpermuted(n_rows, config.integer("num_key_value_heads", "num_attention_heads"))


def _unpermuted(n_rows: int, n_heads: int) -> npt.NDArray[np.intp]:
    """Interleave the halves of each head's rows: transformers rotates one against the other, llama.cpp neighbours."""
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


def ungrouped(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return all queries of a fused matrix, then all keys, then all values: see `_groups`."""
    groups = _groups(config, n_rows)
    return np.concatenate([groups[:, :-2].reshape(-1), groups[:, -2].reshape(-1), groups[:, -1].reshape(-1)])


def _groups(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return row numbers as [groups, heads, rows of a head]: the queries that share a key, that key, its value."""
    n_groups = config.integer("num_key_value_heads", "num_attention_heads")
    n_heads = config.integer("num_attention_heads") + 2 * n_groups
    if n_groups == 0 or n_heads % n_groups or n_rows % n_heads:
        raise CheckpointError(f"{n_rows} rows do not split into {n_heads} attention heads.", "Check config.json.")
    return np.arange(n_rows).reshape(n_groups, n_heads // n_groups, -1)


# A fused tensor, the name of a part and the config -> that part.
Cut: TypeAlias = Callable[
    [FileTensor, str, Config],
    "FileTensor | ExtendedTensor | MappedTensor | RearrangedTensor | StackedTensor | TransposedTensor "
    "| ZeroExtendedTensor",
]


@dataclass(frozen=True, slots=True)
class StackedTensor:
    """Tensors of one shape and type, one after another along a new last dimension."""

    name: str
    parts: tuple[SourceTensor, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        odd = next((part for part in self.parts if (part.shape, part.stored) != (first.shape, first.stored)), None)
        if odd is not None:
            raise CheckpointError(
                f"{odd.name} and {first.name} differ in shape or type.", "Download the checkpoint again."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.parts[0].shape, len(self.parts))

    @property
    def stored(self) -> TensorType:
        return self.parts[0].stored

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield the rows of all parts; a slab may hold the end of one and the start of the next."""
        pieces = (piece for part in self.parts for piece in part.slabs(rows_per_slab))
        return _recut(pieces, self.stored.row_bytes(self.shape[0]) * rows_per_slab)


@dataclass(frozen=True, slots=True)
class ExtendedTensor(RenamedTensor):
    """A matrix of `n_rows`, where those that its origin lacks are its first row."""

    origin: FileTensor
    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.origin.shape[0], self.n_rows)

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_missing = self.n_rows - self.origin.shape[-1]
        parts = itertools.chain([self.origin], itertools.repeat(self.origin.rows(0, 1), n_missing))
        pieces = (piece for part in parts for piece in part.slabs(rows_per_slab))
        return _recut(pieces, self.stored.row_bytes(self.shape[0]) * rows_per_slab)


@dataclass(frozen=True, slots=True)
class ZeroExtendedTensor(RenamedTensor):
    """A tensor of plain numbers whose last dimension is `n` long; what its origin lacks is zeros."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.origin.shape[:-1], self.n)

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_missing = math.prod(self.shape) - math.prod(self.origin.shape)
        pieces = itertools.chain(self.origin.slabs(rows_per_slab), [bytes(self.stored.row_bytes(1) * n_missing)])
        yield from _recut(pieces, self.stored.row_bytes(self.shape[0]) * rows_per_slab)


@dataclass(frozen=True, slots=True)
class TransposedTensor(RenamedTensor):
    """A matrix of plain numbers whose columns are the origin's rows; read whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.origin.shape[::-1]

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_columns, n_rows = self.origin.shape
        data = b"".join(self.origin.slabs(n_rows))
        columns = np.frombuffer(data, f"<u{self.stored.row_bytes(1)}").reshape(n_rows, n_columns).T
        for start in range(0, n_columns, rows_per_slab):
            yield columns[start : start + rows_per_slab].tobytes()


@dataclass(frozen=True, slots=True)
class ReorderedColumns(RenamedTensor):
    """A matrix of plain numbers with those of each row in another order."""

    column_order: npt.NDArray[np.intp]

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        kind = f"<u{self.stored.row_bytes(1)}"
        for data in self.origin.slabs(rows_per_slab):
            yield np.frombuffer(data, kind).reshape(-1, self.shape[0])[:, self.column_order].tobytes()


@dataclass(frozen=True, slots=True)
class MappedTensor(RenamedTensor):
    """A float32 tensor computed from another, value by value."""

    values: ValueMap

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        for data in self.origin.slabs(rows_per_slab):
            rows = to_float32(data, self.origin.stored, self.shape[0])
            yield np.asarray(self.values(rows), "<f4").tobytes()


@dataclass(frozen=True, slots=True)
class MappedNumbers(RenamedTensor):
    """A short row of 64-bit whole numbers computed from another."""

    numbers: NumberMap
    config: Config

    def __post_init__(self) -> None:
        if self.origin.stored.name not in _WHOLE_NUMBERS or len(self.shape) != 1:
            raise CheckpointError(f"{self.name} is not a row of integers.", "Download the checkpoint again.")

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("I64")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        for data in self.origin.slabs(rows_per_slab):
            numbers = np.frombuffer(data, _WHOLE_NUMBERS[self.origin.stored.name]).astype(np.int64)
            yield self.numbers(numbers, self.config).astype("<i8").tobytes()


@dataclass(frozen=True, slots=True)
class ScaledRows(RenamedTensor):
    """A float32 tensor with each row of another multiplied by a factor of its own."""

    factors: npt.NDArray[np.float32]

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        start = 0
        for data in self.origin.slabs(rows_per_slab):
            rows = to_float32(data, self.origin.stored, self.shape[0]).reshape(-1, self.shape[0])
            yield np.asarray(rows * self.factors[start : start + len(rows), None], "<f4").tobytes()
            start += len(rows)


def rearrange_rows(tensor: FileTensor, name: str, row_order: RowOrder, config: Config) -> RearrangedTensor:
    """Return some rows of a tensor, or all, in another order; a bias has one number for each row of its matrix."""
    n_rows = tensor.shape[-1]
    rows = tensor if len(tensor.shape) > 1 else replace(tensor, shape=(1, n_rows))
    order = row_order(config, n_rows)
    return RearrangedTensor(rows, name, (*tensor.shape[:-1], len(order)), order)


def rows_in(row_order: RowOrder) -> Cut:
    return lambda tensor, name, config: rearrange_rows(tensor, name, row_order, config)


def whole_tensor(tensor: FileTensor, name: str, _config: Config) -> FileTensor:
    return replace(tensor, name=name)


def transposed_tensor(tensor: FileTensor, name: str, _config: Config) -> TransposedTensor:
    return TransposedTensor(tensor, name)


def _recut(pieces: Iterable[bytes], n_bytes: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of `n_bytes`, and a shorter last one."""
    held = b""
    for piece in pieces:
        held += piece
        while len(held) >= n_bytes:
            yield held[:n_bytes]
            held = held[n_bytes:]
    if held:
        yield held
