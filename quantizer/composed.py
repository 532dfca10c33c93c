"""Tensors made of others as they are read: several stacked into one, or values computed from what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from quantizer.errors import CheckpointError
from quantizer.numbers import to_float32
from quantizer.sources import FileTensor, SourceTensor
from quantizer.tensor_types import TensorType, tensor_type_named
from quantizer.transforms import ValueMap

__all__ = ["MappedTensor", "StackedTensor"]


@dataclass(frozen=True, slots=True)
class StackedTensor:
    """Tensors of one shape and type, one after another along a new last dimension."""

    name: str
    parts: tuple[FileTensor, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        odd = next((part for part in self.parts if (part.shape, part.stored) != (first.shape, first.stored)), None)
        if odd is not None:
            raise CheckpointError(f"{odd.name} and {first.name} are not alike.", "Download the checkpoint again.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.parts[0].shape, len(self.parts))

    @property
    def stored(self) -> TensorType:
        return self.parts[0].stored

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """The rows of all parts; a slab may hold the end of one and the start of the next."""
        pieces = (piece for part in self.parts for piece in part.slabs(rows_per_slab))
        return _recut(pieces, self.stored.row_bytes(self.shape[0]) * rows_per_slab)


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor of float32 values computed from another's, one for one."""

    origin: SourceTensor
    name: str
    values: ValueMap

    @property
    def shape(self) -> tuple[int, ...]:
        return self.origin.shape

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield the origin's slabs, computed."""
        for data in self.origin.slabs(rows_per_slab):
            rows = to_float32(data, self.origin.stored, self.shape[0])
            yield np.asarray(self.values(rows), "<f4").tobytes()


def _recut(pieces: Iterable[bytes], n_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of `n_bytes`, the last one what is left."""
    held = b""
    for piece in pieces:
        held += piece
        while len(held) >= n_bytes:
            yield held[:n_bytes]
            held = held[n_bytes:]
    if held:
        yield held
