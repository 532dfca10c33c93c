"""Scales and zero points: a number for each block of a weight, and the weight that they make of its codes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.packed.parts import Dims, array, dims, malformed
from quantizer.packed.rows import Rows
from quantizer.sources import FileTensor

__all__ = ["BlockScales", "Grid", "block_counts", "block_scales", "column_groups", "scaled", "spread"]


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers that hold for blocks of a weight: values[row_blocks[i], column_blocks[j]] is that of element (i, j)."""

    values: npt.NDArray[np.float32]
    row_blocks: npt.NDArray[np.intp]
    column_blocks: npt.NDArray[np.intp]

    def over(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Those of the rows [start, stop), in one column where all columns share them."""
        values = self.values[self.row_blocks[start:stop]]
        return values if values.shape[1] == 1 else values[:, self.column_blocks]


def scaled(codes: Rows, scales: Grid, zeros: Grid | None = None) -> Rows:
    """(code - zero) * scale, in float32."""

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        values = codes(start, stop).astype(np.float32)
        if zeros is not None:
            values -= zeros.over(start, stop)
        return values * scales.over(start, stop)

    return rows


def block_counts(shape: Dims, block: Dims) -> Dims:
    """Number of blocks in each dimension; the last block may be cut."""
    return tuple(-(-n // length) for n, length in zip(shape, block, strict=True))


def spread(values: npt.NDArray[np.float32], shape: Dims, block: Dims) -> Grid:
    """Lay out one value for each block, in any shape, over a weight of `shape`."""
    counts = block_counts(shape, block)
    places = [np.arange(n) // length for n, length in zip(shape, block, strict=True)]
    row_blocks = np.arange(math.prod(counts[:-1])).reshape(counts[:-1])[np.ix_(*places[:-1])]
    return Grid(values.reshape(-1, counts[-1]), row_blocks.reshape(-1), places[-1])


@dataclass(frozen=True, slots=True)
class BlockScales:
    """Numbers stored for each `block` of a weight of `shape`."""

    stored: FileTensor
    shape: Dims
    block: Dims

    def open(self) -> Grid:
        """Read them."""
        return spread(array(self.stored).astype(np.float32), self.shape, self.block)


def block_scales(stored: FileTensor, shape: Dims, block: Dims) -> BlockScales:
    """Scales as a checkpoint has them, trailing dimensions of one block left out or not.

    Raises CheckpointError naming them when they are not one for each block.
    """
    if len(shape) != len(block) or _trimmed(dims(stored)) != _trimmed(block_counts(shape, block)):
        raise malformed(f"The tensor {stored.name!r} is not one number for each block of its weight")
    return BlockScales(stored, shape, block)


def column_groups(stored: FileTensor, n_groups: int) -> npt.NDArray[np.intp]:
    """The group of each column, as activation order leaves it. Raises CheckpointError for a group that is not there."""
    groups = array(stored)
    if groups.max() >= n_groups:
        raise malformed(f"The tensor {stored.name!r} names groups beyond the {n_groups} that there are")
    return groups.astype(np.intp)


def _trimmed(shape: Dims) -> Dims:
    """Without trailing ones."""
    n_kept = max((i + 1 for i, n in enumerate(shape) if n != 1), default=0)
    return shape[:n_kept]
