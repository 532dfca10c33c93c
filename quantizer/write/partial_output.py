"""Output files while they are written: under partial names until all are whole, and resumed where a killed run stopped.

An output is a row of files, and a file a row of blocks of known size, whatever these hold. Owns the names of partial
files, the journal of written blocks and its lock, free space, syncing and renaming. The journal is a text file beside
the output: a fingerprint of the output in the first line, the checksum of a written block in each further one. It
counts only for blocks whose bytes match, so nothing depends on the order in which a disk stores things.

`join_checksums` gives the CRC-32 of a whole from those of its pieces, so that several threads can compute them: bytes
after a piece multiply its checksum, a polynomial over two elements, by x once for each bit.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from quantizer.system.errors import StorageError, UsageError
from quantizer.system.files import (
    BackgroundSync,
    explained,
    open_partial,
    open_regular,
    remove_lock,
    sync_folder,
    try_lock,
)

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
    for index, file in enumerate(files):
        start = 0
        for n_bytes in file.block_bytes:
            yield Block(index, start, n_bytes)
            start += n_bytes


def checksum_of(path: Path, block: Block) -> int | None:
    """Return the checksum of a block in a file, None when it is incomplete."""
    checksum, left = 0, block.n_bytes
    try:
        with open_regular(path, 0) as file:
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
    # x⁸ to the power of `n_bytes`, by squaring
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


_SPARE_BYTES = 16 << 20


class PartialOutput:
    """A context manager that owns partial files and gives them their final names when the block ends well.

    `output` names the whole. What a killed run with the same `fingerprint` left of it is resumed, unless
    `is_overwriting`. When the block ends with an error nothing is left. Blocks come in order: `write` each, in pieces,
    and `end_block`; the first `n_done` of them exist already. Raises StorageError when the disk is full, another run
    writes the same output, or anything else prevents writing.
    """

    def __init__(self, output: Path, files: Sequence[OutputFile], fingerprint: str, is_overwriting: bool) -> None:
        self.n_done = 0
        self.n_written = 0
        self._output = output
        self._files = files
        self._blocks = list(blocks(files))
        self._fingerprint = fingerprint
        self._is_overwriting = is_overwriting
        self._checksum = 0
        self._part: BinaryIO | None = None
        self._syncing = BackgroundSync()

    def __enter__(self) -> PartialOutput:
        with _storage_errors(self._output):
            self._journal = Journal(self._output)
        try:
            self._take_over()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def write(self, data: bytes, checksum: int | None = None) -> None:
        """Append `data`, whose CRC-32 is computed unless given, to the current block. Raises StorageError."""
        with _storage_errors(self._output):
            if self._part is None:
                block = self._blocks[self.n_done]
                self._part = open_partial(self._part_path(block.file))
                self._part.truncate(block.start)  # what came after the last whole block
                self._part.seek(block.start)
            view = memoryview(data)
            while view:
                view = view[self._part.write(view) :]
            self._syncing.wrote(self._part, len(data))
        self._checksum = join_checksums(self._checksum, zlib.crc32(data) if checksum is None else checksum, len(data))
        self.n_written += len(data)

    def end_block(self) -> None:
        """Record that the block is whole. Raises StorageError."""
        block = self._blocks[self.n_done]
        assert self.n_written == sum(item.n_bytes for item in self._blocks[: self.n_done]) + block.n_bytes
        with _storage_errors(self._output):
            if block.start + block.n_bytes == self._files[block.file].n_bytes:
                assert self._part is not None
                self._syncing.finish()
                os.fsync(self._part.fileno())  # before the journal has the file as whole
                self._part.close()
                self._part = None
            self._journal.add(self._checksum)
        self.n_done += 1
        self._checksum = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _storage_errors(self._output):
            try:
                if kind is None:
                    self._publish()
            finally:
                self._syncing.close()
                if self._part is not None:
                    with contextlib.suppress(OSError):  # the error that led here is already being raised
                        self._part.close()
                _remove_parts(self._output)
                self._journal.remove()

    def _take_over(self) -> None:
        with _storage_errors(self._output):
            claimed = [] if self._is_overwriting else self._journal.checksums(self._fingerprint)
            standing: list[int] = []  # of the blocks, from the first on, that match their checksums
            for block, checksum in zip(self._blocks, claimed, strict=False):
                path = self._part_path(block.file)
                path = path if path.exists() else self._files[block.file].path  # it got its final name before the kill
                if checksum_of(path, block) != checksum:
                    break
                standing.append(checksum)
            self.n_done = len(standing)
            self.n_written = sum(block.n_bytes for block in self._blocks[: self.n_done])
            kept = {self._part_path(block.file) for block in self._blocks[: self.n_done]}
            _remove_parts(self._output, kept)
            self._journal.restart(self._fingerprint, standing)
        self._check_space()

    def _check_space(self) -> None:
        for index, file in enumerate(self._files):
            is_whole = all(block.file != index for block in self._blocks[self.n_done :])
            is_ours = is_whole and not self._part_path(index).exists()
            if os.path.lexists(file.path) and not self._is_overwriting and not is_ours:
                raise _in_the_way(file.path)
        n_missing = sum(file.n_bytes for file in self._files) - self.n_written
        free = shutil.disk_usage(self._output.parent).free
        if free < n_missing + _SPARE_BYTES:
            raise StorageError(
                f"The output needs {n_missing / 1e9:.3f} GB, and {free / 1e9:.3f} GB is free in {self._output.parent}.",
                "Free some space, make it smaller, or write to another disk.",
            )

    def _part_path(self, file: int) -> Path:
        return partial_path(self._output, file)

    def _publish(self) -> None:
        assert self.n_done == len(self._blocks)
        # the first file last: without it the others are no model
        for index, file in reversed(list(enumerate(self._files))):
            part = self._part_path(index)
            if not part.exists():
                continue
            if os.path.lexists(file.path) and not self._is_overwriting:
                raise _in_the_way(file.path)
            part.replace(file.path)
        sync_folder(self._output.parent)


def check_output(output: Path, paths: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Check before anything is made that `output` is not the input, not a folder, and can be written.
    `paths` are all files of the output. Raises UsageError or StorageError."""
    for path in (output, *paths):
        if path.exists() and any(path.samefile(source) for source in inputs):
            raise UsageError(f"{path} is the input, or part of it.", "Name another output with -o.")
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file with -o.")
    if not output.parent.is_dir():
        raise StorageError(f"There is no folder {output.parent}.", "Create it, or name another output with -o.")
    if not os.access(output.parent, os.W_OK):
        raise StorageError(f"The folder {output.parent} cannot be written to.", "Name another output with -o.")


def discard_partial(output: Path) -> None:
    """Remove what an interrupted run left of `output`; a running one keeps its files.
    Raises StorageError when it cannot be removed."""
    if not journal_path(output).exists():
        return
    with _storage_errors(output):
        try:
            journal = Journal(output)
        except StorageError:
            return  # another run holds it
        _remove_parts(output)
        journal.remove()


def partial_path(output: Path, index: int) -> Path:
    """Return the path under which the file `index` of `output` is written."""
    return output.with_name(f".{output.name}.{index}.partial")


def _remove_parts(output: Path, kept: set[Path] | frozenset[Path] = frozenset()) -> None:
    pattern = re.compile(rf"\.{re.escape(output.name)}\.\d+\.partial")
    for path in output.parent.iterdir():
        if pattern.fullmatch(path.name) and path not in kept:
            path.unlink(missing_ok=True)


def _in_the_way(output: Path) -> StorageError:
    return StorageError(f"{output} exists already.", "Pass --overwrite, or name another output with -o.")


def _storage_errors(output: Path) -> contextlib.AbstractContextManager[None]:
    return explained(f"{output.name} could not be written", "Free some space or name another folder.")


_LINE = re.compile(rb"[0-9a-f]{8}")


class Journal:
    """The open journal of `output`, locked against other runs until it is closed.
    Raises StorageError when another run holds it, OSError when it cannot be opened."""

    def __init__(self, output: Path) -> None:
        self.path = journal_path(output)
        lock = try_lock(lock_path(output))
        if lock is None:
            raise StorageError(f"Another run is writing {output.name}.", "Wait for it, or name another output with -o.")
        self._lock = lock
        try:
            self._file = open_partial(self.path, appends=True)
        except OSError:
            remove_lock(lock)
            raise

    def checksums(self, fingerprint: str) -> list[int]:
        """Return the checksums of the blocks that a run with this `fingerprint` wrote, none when another one wrote."""
        self._file.seek(0)
        first, *lines = self._file.read().split(b"\n")[:-1] or [b""]  # an unfinished line does not count
        if first != fingerprint.encode():
            return []
        return [int(line, 16) for line in takewhile(_LINE.fullmatch, lines)]

    def restart(self, fingerprint: str, checksums: Sequence[int]) -> None:
        """Begin anew with the blocks that are written already. Raises OSError."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write("\n".join([fingerprint, *(f"{checksum:08x}" for checksum in checksums), ""]).encode())

    def add(self, checksum: int) -> None:
        """Record one more written block. Raises OSError."""
        self._file.write(f"{checksum:08x}\n".encode())

    def close(self) -> None:
        self._file.close()
        remove_lock(self._lock)

    def remove(self) -> None:
        self._file.close()
        try:
            self.path.unlink(missing_ok=True)
        finally:
            remove_lock(self._lock)


def journal_path(output: Path) -> Path:
    return output.with_name(f".{output.name}.journal")


def lock_path(output: Path) -> Path:
    return output.with_name(f".{output.name}.lock")
