"""Limits on a child process that reads untrusted files: it is killed past its processor time or its memory.

The time counts the child's own work: what else the machine does is not the file's fault. Owns the thread that watches;
whoever started the child learns why it ended.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from enum import Enum

import psutil

__all__ = ["ChildWatch", "Excess"]

_WAIT_FACTOR = 10  # a child that gets no processor is waited for this often as long
_LEAST_POLL_S, _MOST_POLL_S = 0.05, 0.2


class Excess(Enum):
    """What a child took too much of."""

    TIME = "time"
    MEMORY = "memory"


class ChildWatch:
    """A context manager that kills `child` after `timeout_s` of its processor time, or ten times as long on the clock,
    and past `max_bytes` of resident memory; `excess` tells which, None while neither happened."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float, max_bytes: float = math.inf) -> None:
        self.excess: Excess | None = None
        self._child = child
        self._max_bytes = max_bytes
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="child-watch", daemon=True)
        self.allow(timeout_s)

    def allow(self, timeout_s: float) -> None:
        """Give the child this much processor time from now on."""
        self._limit_s = self._usage()[0] + timeout_s
        self._deadline_s = time.monotonic() + _WAIT_FACTOR * timeout_s

    def __enter__(self) -> ChildWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._is_done.wait(pause_s):
            used_s, n_bytes = self._usage()
            if used_s == math.inf:
                return  # it has ended by itself, which its reader learns from its pipe
            if n_bytes > self._max_bytes:
                self.excess = Excess.MEMORY
            elif used_s >= self._limit_s or time.monotonic() >= self._deadline_s:
                self.excess = Excess.TIME
            if self.excess is not None:
                self._child.kill()
                return
            pause_s = min(_MOST_POLL_S, max(_LEAST_POLL_S, self._limit_s - used_s))

    def _usage(self) -> tuple[float, int]:
        """Return the processor time and the resident bytes of the child; of one that ended infinite and 0."""
        try:
            process = psutil.Process(self._child.pid)
            times = process.cpu_times()
            return float(times.user + times.system), int(process.memory_info().rss)
        except psutil.Error:
            return math.inf, 0
