"""An output as a row of files, and a file as a row of blocks of known size: where each lies, and its checksum.

Knows nothing of what the blocks hold.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "OutputFile", "blocks", "checksum_of"]

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
    """Where a block lies: in which file, from which byte."""

    file: int
    start: int
    n_bytes: int


def blocks(files: Sequence[OutputFile]) -> Iterator[Block]:
    """The blocks of all files, in order."""
    for index, file in enumerate(files):
        start = 0
        for n_bytes in file.block_bytes:
            yield Block(index, start, n_bytes)
            start += n_bytes


def checksum_of(path: Path, block: Block) -> int | None:
    """The checksum of a block as it lies in a file, None when it is not all there."""
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
