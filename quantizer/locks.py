"""A lock that the system lets go of when its process ends, however it ends. The platforms differ here only."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

__all__ = ["try_lock"]

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
