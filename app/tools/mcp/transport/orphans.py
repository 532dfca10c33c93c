"""Servers that outlived a localllm that was killed: found by a mark in their environment, and ended.

Most servers end when their input is closed, as it is when its writer dies; some go on for ever. The mark is inherited
by what a server starts, so that is found too. It names a process by its number and its start: numbers are used again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


OWNER_VARIABLE = "LOCALLLM_MCP_OWNER"
_MARK = re.compile(r"([0-9]{1,9})-([0-9]{1,12})")
_GRACE_S = 2.0
_CLOCK_TOLERANCE_S = 3600.0  # starts are told by a clock that may be set meanwhile


def owner_mark() -> str:
    """Return the value of the variable for what this process starts."""
    import psutil  # slow, and only servers need it

    return _mark(psutil.Process())


def end_orphans() -> int:
    """End the servers of processes that are gone, and return how many there were. Takes about a tenth of a second."""
    import psutil

    orphans = list(_orphans())
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(orphans, timeout=_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(orphans)


def _orphans() -> Iterator[psutil.Process]:
    import psutil

    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):  # those of others cannot be looked into
            mark = process.environ().get(OWNER_VARIABLE, "")
            if mark and not _is_alive(mark):
                yield process


def _is_alive(mark: str) -> bool:
    """Return whether the process of a mark runs; of one that is none of ours that is not known, so it does."""
    import psutil

    found = _MARK.fullmatch(mark)
    if found is None:
        return True
    try:
        started_s = psutil.Process(int(found.group(1))).create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return abs(started_s - float(found.group(2))) < _CLOCK_TOLERANCE_S


def _mark(process: psutil.Process) -> str:
    return f"{process.pid}-{process.create_time():.0f}"
