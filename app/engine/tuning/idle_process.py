"""How a process that measures in idle moments begins: at the lowest priority, and ending with whoever started it."""

from __future__ import annotations

import sys

import psutil

from quantizer.system.child_request import exit_with_parent

_IDLE_NICE = 19


def begin_idle() -> None:
    if sys.platform == "win32":
        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        psutil.Process().nice(_IDLE_NICE)
    exit_with_parent()
