"""Scales and zero points for blocks of a weight, codes packed into 32-bit words, and the weight that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.packed.parts import Dims, Rows, array, dims, malformed
from quantizer.convert.source_model import FileTensor

__all__ = [
    "WORD_BITS",
    "BlockScales",
    "Grid",
    "apply_scales",
    "block_counts",
    "block_scales",
    "column_groups",
    "spread_blocks",
    "unpack_bits",
]

WORD_BITS = 32


def unpack_bits(words: npt.NDArray[np.uint32], n_bits: int) -> npt.NDArray[np.uint8]:
    """Return fields of `n_bits` (1 to 8) along the last axis, lowest bits first, running on from word to word.

    [..., n_words] becomes [..., n_words * 32 // n_bits].
    """
    n_fields = words.shape[-1] * WORD_BITS // n_bits
    period = n_bits // math.gcd(n_bits, WORD_BITS)
    missing = -words.shape[-1] % period
    if missing:
        words = np.concatenate([words, np.zeros((*words.shape[:-1], missing), np.uint32)], axis=-1)
    groups = words.reshape(*words.shape[:-1], -1, period)
    fields = np.empty((*groups.shape[:-1], period * WORD_BITS // n_bits), np.uint8)
    for i in range(fields.shape[-1]):
        word, shift = divmod(i * n_bits, WORD_BITS)
        field = groups[..., word] >> np.uint32(shift)
        if shift + n_bits > WORD_BITS:
            field = field | groups[..., word + 1] << np.uint32(WORD_BITS - shift)
        fields[..., i] = field & np.uint32((1 << n_bits) - 1)
    return fields.reshape(*words.shape[:-1], -1)[..., :n_fields]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values for blocks of a weight: values[row_blocks[i], column_blocks[j]] belongs to element (i, j)."""

    values: npt.NDArray[np.float32]
    row_blocks: npt.NDArray[np.intp]
    column_blocks: npt.NDArray[np.intp]

    def over(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return those of the rows [start, stop), in one column where all columns share them."""
        values = self.values[self.row_blocks[start:stop]]
        return values if values.shape[1] == 1 else values[:, self.column_blocks]


def apply_scales(codes: Rows, scales: Grid, zeros: Grid | None = None) -> Rows:
    """Return (code - zero) * scale, in float32."""

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        values = codes(start, stop).astype(np.float32)
        if zeros is not None:
            values -= zeros.over(start, stop)
        return values * scales.over(start, stop)

    return rows


def block_counts(shape: Dims, block: Dims) -> Dims:
    """Return number of blocks in each dimension; the last block may be cut."""
    return tuple(-(-n // length) for n, length in zip(shape, block, strict=True))


def spread_blocks(values: npt.NDArray[np.float32], shape: Dims, block: Dims) -> Grid:
    """Lay out one value for each block, in any shape, over a weight of `shape`."""
    counts = block_counts(shape, block)
    places = [np.arange(n) // length for n, length in zip(shape, block, strict=True)]
    row_blocks = np.arange(math.prod(counts[:-1])).reshape(counts[:-1])[np.ix_(*places[:-1])]
    return Grid(values.reshape(-1, counts[-1]), row_blocks.reshape(-1), places[-1])


@dataclass(frozen=True, slots=True)
class BlockScales:
    """Values stored for each `block` of a weight of `shape`."""

    stored: FileTensor
    shape: Dims
    block: Dims

    def open(self) -> Grid:
        """Read them."""
        return spread_blocks(array(self.stored).astype(np.float32), self.shape, self.block)


def block_scales(stored: FileTensor, shape: Dims, block: Dims) -> BlockScales:
    """Return scales as a checkpoint has them, trailing dimensions of one block left out or not.

    Raises CheckpointError naming them when they are not one for each block.
    """
    if len(shape) != len(block) or _trimmed(dims(stored)) != _trimmed(block_counts(shape, block)):
        raise malformed(f"The tensor {stored.name!r} is not one number for each block of its weight")
    return BlockScales(stored, shape, block)


def column_groups(stored: FileTensor, n_groups: int) -> npt.NDArray[np.intp]:
    """Return the group of each column, as activation order leaves it. Raises CheckpointError for a group that is not
    there.
    """
    groups = array(stored)
    if groups.max() >= n_groups:
        raise malformed(f"The tensor {stored.name!r} names groups beyond the {n_groups} that there are")
    return groups.astype(np.intp)


def _trimmed(shape: Dims) -> Dims:
    """Return the shape without trailing ones."""
    n_kept = max((i + 1 for i, n in enumerate(shape) if n != 1), default=0)
    return shape[:n_kept]
