"""An output as a row of files, and a file as a row of blocks of known size: their places and checksums.

Independent of what the blocks hold. `joined` gives the CRC-32 of a whole from those of its pieces, so that several
threads can compute them: bytes after a piece multiply its checksum, a polynomial over two elements, by x once for each
bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Block", "OutputFile", "blocks", "checksum_of", "join_checksums"]

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to write: its final name, and the bytes of each of its blocks."""

    path: Path
    block_bytes: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return sum(self.block_bytes)


@dataclass(frozen=True, slots=True)
class Block:
    """The place of a block: its file, and the first byte."""

    file: int
    start: int
    n_bytes: int


def blocks(files: Sequence[OutputFile]) -> Iterator[Block]:
    """Yield the blocks of all files, in order."""
    for index, file in enumerate(files):
        start = 0
        for n_bytes in file.block_bytes:
            yield Block(index, start, n_bytes)
            start += n_bytes


def checksum_of(path: Path, block: Block) -> int | None:
    """Return the checksum of a block in a file, None when it is incomplete."""
    checksum, left = 0, block.n_bytes
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(block.start)
            while left and (data := file.read(min(left, _READ_BYTES))):
                checksum = zlib.crc32(data, checksum)
                left -= len(data)
    except FileNotFoundError:
        return None
    return None if left else checksum


# Bit 31 is the coefficient of x⁰, as in the checksum itself
_POLYNOMIAL = 0xEDB88320
_ONE, _X_8 = 1 << 31, 1 << 23
_MASK = 0xFFFFFFFF


def join_checksums(first: int, second: int, n_bytes: int) -> int:
    """Return the checksum of two pieces from the checksum of each; the second has `n_bytes`."""
    return _product(first, _shift(n_bytes)) ^ second


@lru_cache
def _shift(n_bytes: int) -> int:
    """Return the factor x⁸ to the power of `n_bytes`, by squaring."""
    power, square = _ONE, _X_8
    while n_bytes:
        if n_bytes & 1:
            power = _product(power, square)
        square = _product(square, square)
        n_bytes >>= 1
    return power


def _product(first: int, second: int) -> int:
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
        first = first << 1 & _MASK
    return product
