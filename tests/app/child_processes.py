"""The processes below another one, for tests of what runs and of what is left behind.

Where children are forked, this process adopts the orphans of all tests (see `fork_server`): they have ended, and are in
the system's table until this process ends too.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

__all__ = ["children_that_run", "living_children"]


def living_children(process: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the processes below `process`, this one by default, that have not ended."""
    found = []
    for child in (process or psutil.Process()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def children_that_run(words: str, process: psutil.Process | None = None) -> list[psutil.Process]:
    """Return those of `living_children` whose command line has `words`."""
    found = []
    for child in living_children(process):
        with suppress(psutil.NoSuchProcess):  # a zombie too
            if words in " ".join(child.cmdline()):
                found.append(child)
    return found
