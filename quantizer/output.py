"""The file being written: beside its final name until it is whole, and gone if it never becomes so.

Owns names of partial files, free space, syncing and the rename; knows nothing of what is written.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import psutil

from quantizer.errors import StorageError, UsageError

__all__ = ["PartialFile", "check_output", "partial_path", "remove_partials"]

_SPARE_BYTES = 16 << 20


class PartialFile:
    """A context manager that owns a partial file and gives it its final name when the block ends well.

    Raises StorageError when the disk is full, or anything else stands in the way of writing.
    """

    def __init__(self, output: Path, is_overwriting: bool) -> None:
        self.n_written = 0
        self._output = output
        self._is_overwriting = is_overwriting
        self._path = partial_path(output, os.getpid())
        self._file: BinaryIO | None = None

    def __enter__(self) -> PartialFile:
        remove_partials(self._output)
        try:
            self._file = self._path.open("xb")
        except OSError as error:
            raise _not_written(self._output, error) from error
        return self

    def write(self, data: bytes) -> None:
        """Append `data`. Raises StorageError."""
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise _not_written(self._output, error) from error
        self.n_written += len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            if kind is None:
                self._publish(self._file)
        except OSError as failure:
            raise _not_written(self._output, failure) from failure
        finally:
            _close(self._file)
            self._path.unlink(missing_ok=True)

    def _publish(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        if self._output.exists() and not self._is_overwriting:
            raise _in_the_way(self._output)
        self._path.replace(self._output)
        _sync_folder(self._output.parent)


def check_output(output: Path, inputs: Sequence[Path], n_bytes: int, is_overwriting: bool) -> None:
    """Say before the first byte what would go wrong at the last: the input as output, a file in the way, no space.

    Raises UsageError or StorageError.
    """
    if output.exists() and any(output.samefile(path) for path in inputs):
        raise UsageError(f"{output} is the input, or part of it.", "Name another output with -o.")
    if output.exists() and not is_overwriting:
        raise _in_the_way(output)
    if output.is_dir():
        raise UsageError(f"{output} is a folder.", "Name a file with -o.")
    folder = output.parent
    if not folder.is_dir():
        raise StorageError(f"There is no folder {folder}.", "Create it, or name another output with -o.")
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _SPARE_BYTES:
        raise StorageError(
            f"The output takes {n_bytes / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB free.",
            "Free some space, choose a smaller type, or name another disk with -o.",
        )


def partial_path(output: Path, pid: int) -> Path:
    """Where the process `pid` writes what will become `output`."""
    return output.with_name(f".{output.name}.{pid}.partial")


def remove_partials(output: Path) -> None:
    """Remove what killed runs left of `output`; a run that still goes on keeps its own."""
    pattern = re.compile(rf"\.{re.escape(output.name)}\.(\d+)\.partial")
    for path in output.parent.glob("*.partial"):
        match = pattern.fullmatch(path.name)
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            path.unlink(missing_ok=True)


def _close(file: BinaryIO) -> None:
    try:
        file.close()
    except OSError:
        # the buffered rest did not fit either; the error that led here is already on its way
        return


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows has no way to sync a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_the_way(output: Path) -> StorageError:
    return StorageError(f"{output} exists already.", "Pass --overwrite, or name another output with -o.")


def _not_written(output: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"{output.name} could not be written: {reason}.", "Free some space or name another folder.")
