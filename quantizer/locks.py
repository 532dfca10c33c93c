"""A lock that the system lets go of when its process ends, however it ends. The platforms differ here only."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_locked", "try_lock"]

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
