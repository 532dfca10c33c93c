"""Bytes of a model file: from the local disk, or from any other `ByteSource`.

Owns opening and reading; independent of what the bytes mean.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quantizer.errors import ModelFileError

__all__ = ["ByteSource", "LocalFile", "open_local"]


class ByteSource(Protocol):
    """Random access to the bytes of one file of known length."""

    @property
    def n_bytes(self) -> int:
        """Length of the whole file in bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer where the source ends. Raises ModelFileError when they cannot be
        had."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file; opened for each read, so no handle is held that would block a rename on Windows."""

    path: Path
    n_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer at the end of the file. Raises ModelFileError on an I/O error."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(stop - start)
        except OSError as error:
            raise _unreadable(self.path, error) from error


def open_local(path: Path) -> LocalFile:
    """Look at `path` and take its length. Raises ModelFileError when it is missing or not a regular file."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise ModelFileError(f"There is no file {path}.", "Check the path.") from error
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{path} is a folder, not a GGUF file.", "Name the .gguf file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a regular file.", "Name a .gguf file on disk.")
    return LocalFile(path, status.st_size)


def _unreadable(path: Path, error: OSError | ValueError) -> ModelFileError:
    reason = getattr(error, "strerror", None) or str(error)
    return ModelFileError(f"{path} cannot be read: {reason}.", "Check the path and its permissions.")
