"""How localllm starts its own processes, on every platform.

Owns command lines of Python children, their place apart from the terminal, who goes first, and whether one still runs.
Knows nothing of what they do.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

__all__ = ["child_environment", "detached_process_options", "is_process_alive", "lower_priority", "python_command"]

_LOW_NICE = 10


def python_command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs module `name` with this Python.

    -P keeps the current folder off the import path: a folder of the user's named `app` must not be run instead of ours.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables`, and -P for whatever Python the child starts in turn."""
    return {**os.environ, "PYTHONSAFEPATH": "1", **variables}


def detached_process_options() -> dict[str, Any]:
    """Return arguments for subprocess: the child hears no Ctrl-C of this terminal and opens no window of its own."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def lower_priority(process_id: int) -> None:
    """Let a process, and what it starts from now on, have processor time after those that a person waits for."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        if sys.platform == "win32":
            psutil.Process(process_id).nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            psutil.Process(process_id).nice(_LOW_NICE)


def is_process_alive(process: str) -> bool:
    """Return whether the process runs whose number is `process`; False for a text that is no number."""
    import psutil

    return process.isdecimal() and process.isascii() and psutil.pid_exists(int(process))
