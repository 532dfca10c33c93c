"""Syncing a file while it is still being written, and the names in a folder.

The disk works meanwhile and the last sync is a short one. Left alone, a system with much memory starts to write when
gigabytes wait, which is at the end.

A lock that the system lets go of when its process ends, however it ends. The platforms differ here only.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

__all__ = ["BackgroundSync", "open_locked", "sync_folder", "try_lock"]

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


_N_ATTEMPTS = 10
_FAR_OFFSET = 1 << 40  # Windows locks bytes, and keeps others from reading them: one that no file has


def try_lock(file: BinaryIO) -> bool:
    """Lock an open file for this process; False when another one holds it. Closing the file unlocks it.

    Raises OSError where the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file.fileno(), _FAR_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(path: Path) -> BinaryIO | None:
    """Open the file at `path` for appending, made if need be, and lock it; None when another process holds it.

    Whoever removes such a file does so while it holds it. Raises OSError.
    """
    for _ in range(_N_ATTEMPTS):
        with ExitStack() as stack:
            file: BinaryIO = stack.enter_context(path.open("a+b", buffering=0))
            if not try_lock(file):
                return None
            if _is_at(path, file):
                stack.pop_all()
                return file
    return None


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file still lies at `path`; the process that held it may have removed it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
