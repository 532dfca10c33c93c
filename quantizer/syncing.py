"""Syncing a file while it is still being written, and the names in a folder.

The disk works meanwhile and the last sync is a short one. Left alone, a system with much memory starts to write when
gigabytes wait, which is at the end.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

__all__ = ["BackgroundSync", "sync_folder"]

_EVERY_BYTES = 128 << 20


class BackgroundSync:
    """Syncs one file at a time in a thread of its own, each time that much was written."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None
        self._n_waiting = 0

    def wrote(self, file: BinaryIO, n_bytes: int) -> None:
        """Note that `n_bytes` more were written to `file`. Raises OSError when a sync before failed."""
        self._n_waiting += n_bytes
        if self._n_waiting < _EVERY_BYTES or (self._running is not None and not self._running.done()):
            return
        self.finish()
        self._running = self._pool.submit(os.fsync, file.fileno())
        self._n_waiting = 0

    def finish(self) -> None:
        """Wait for the sync that runs; its file may be closed then. Raises OSError when it failed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the sync that runs, whatever becomes of it: something else went wrong already."""
        self._pool.shutdown()


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    if os.name == "nt":
        return  # Windows has no way to sync a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
