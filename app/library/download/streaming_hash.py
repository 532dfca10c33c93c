"""Hashing of a file while it is written, in order, in its own thread.

It reads what was just written, from the page cache, so the disk is not read again.
"""

from __future__ import annotations

import threading
from pathlib import Path

from app.library.download.remote_file import Hasher

__all__ = ["StreamingHash"]

_BUFFER_BYTES = 1 << 20


class StreamingHash:
    """A context manager that hashes the first `n_bytes` of the file at `path`, up to its frontier."""

    def __init__(self, path: Path, n_bytes: int, hasher: Hasher) -> None:
        self._path = path
        self._n_bytes = n_bytes
        self._hasher = hasher
        self._frontier = 0
        self._is_closing = False
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hashing", daemon=True)

    def __enter__(self) -> StreamingHash:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def advance(self, frontier: int) -> None:
        """Report that all bytes before `frontier` are written."""
        with self._changed:
            self._frontier = max(self._frontier, frontier)
            self._changed.notify()

    def digest(self) -> str:
        """Wait until all bytes are hashed and return the hash in hexadecimal. Raises OSError."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._hasher.hexdigest()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        n_hashed = 0
        try:
            with self._path.open("rb", buffering=0) as file:
                while n_hashed < self._n_bytes and (n_ready := self._wait_beyond(n_hashed)):
                    n_read = file.readinto(buffer[: min(n_ready - n_hashed, _BUFFER_BYTES)])
                    self._hasher.update(buffer[:n_read])
                    n_hashed += n_read
        except OSError as error:
            self._failure = error

    def _wait_beyond(self, n_hashed: int) -> int:
        """Wait until more than `n_hashed` bytes are written and return how many; 0 when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._frontier > n_hashed or self._is_closing)
            return 0 if self._is_closing else self._frontier
