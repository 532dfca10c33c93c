"""Folders for temporary files of one process, `localllm-PURPOSE-…` where the system keeps such.

A folder is removed when its process is done with it. Where that failed, or the process was killed, the next one does
it: a lock inside tells whether somebody still uses it. Others may share /tmp: what is not this user's stays.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from quantizer.system.files import explained, last_use_s, remove_lock, sorted_glob, try_lock

Purpose: TypeAlias = Literal["load", "imatrix", "launch", "bench", "edit", "record"]
_PREFIX = "localllm-"
_NAME = re.compile(rf"{_PREFIX}({'|'.join(get_args(Purpose))})-\w+")
_LOCK = ".in-use.lock"
_LEAST_AGE_S = 60.0  # one that was made just now may not be locked yet
_UNLOCKED_AGE_S = 24 * 3600.0  # former versions lock none
_LOGGER = logging.getLogger("localllm")  # of `app.common.event_log`


def _log(text: str) -> None:
    _LOGGER.info("%s", text, extra={"source": "temporary"})


@contextmanager
def temporary_folder(purpose: Purpose, on_left: Callable[[str], object] = _log) -> Iterator[Path]:
    """Yield a new folder that only this user can read, and remove it afterwards; `on_left` gets a sentence where that
    fails. Raises StorageError where none can be made."""
    for path in abandoned_folders():
        _removed(path)
    with explained("A folder for temporary files cannot be made", "Free some space, or set TMPDIR to another folder."):
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        try:
            lock = try_lock(folder / _LOCK)
        except BaseException:
            _removed(folder)
            raise
    try:
        yield folder
    finally:
        if lock is not None:
            remove_lock(lock)
        if why := _removed(folder):
            on_left(f"{folder} is left, for it cannot be removed: {why}. `localllm prune` and later runs try again.")


def abandoned_folders() -> Iterator[Path]:
    """Yield the folders of this user that no process uses any more."""
    for path in sorted_glob(Path(tempfile.gettempdir()), f"{_PREFIX}*-*"):
        try:
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and (sys.platform == "win32" or status.st_uid == os.geteuid())
            least_age_s = _LEAST_AGE_S if (path / _LOCK).exists() else _UNLOCKED_AGE_S
            if not (_NAME.fullmatch(path.name) and is_ours and time.time() - last_use_s(path) > least_age_s):
                continue
            if (lock := try_lock(path / _LOCK)) is None:
                continue
        except OSError:
            continue
        lock.release()  # and leave its file: whoever only looks removes nothing
        yield path


def _removed(folder: Path) -> str:
    """Remove the folder, as much of it as can be; return why something stays, "" where nothing does."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:  # another process was as fast
        return ""
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # what it came to later; and a fault may have passed
        with suppress(OSError):
            (folder / _LOCK).touch()  # which tells the next one that nobody uses it
        return (error.strerror or str(error)) if os.path.lexists(folder) else ""
    return ""
