"""Ending a process together with all that it started.

Owns the order and its limits: close the input, ask, kill. What belongs to the process is looked up while it runs: its
descendants, and on POSIX the group that it leads, which outlives it. What cut itself off from both goes on, and on
Windows what a process left behind that ended by itself: nothing can find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum

import psutil

_CLOSED_GRACE_S = 1.0  # after its input was closed
_ASKED_GRACE_S = 2.0  # after SIGTERM
_KILLED_GRACE_S = 2.0  # until the system has removed it
_LOOK_S = 0.01


class ProcessTree:
    """A child started with `detached_process_options`, and all that it starts. `has_ended` says whether the child
    itself has: its number may then be that of another process."""

    def __init__(self, process_id: int, has_ended: Callable[[], bool]) -> None:
        self._process_id = process_id
        self._has_ended = has_ended
        self._members: list[psutil.Process] = []  # that were seen

    async def end(self, close_input: Callable[[], None] | None = None) -> None:
        """End all of it: close the input of the child where it has one, ask it to end where the system has signals, and
        kill what is left. The child has ended then, unless the system holds it. Cancelling kills at once."""
        try:
            if not self._has_ended():
                self._members = await asyncio.to_thread(_members, self._process_id)
            if close_input is not None:
                close_input()
                await self.ended_within(_CLOSED_GRACE_S)
            if not self._has_ended() and _signal_group(self._process_id, "SIGTERM"):
                await self.ended_within(_ASKED_GRACE_S)
        finally:
            self.kill()
        await self.ended_within(_KILLED_GRACE_S)

    def kill(self) -> None:
        """Kill all of it now. Blocks for a moment: all processes are looked through."""
        if not self._has_ended():
            self._members += _members(self._process_id)
        _signal_group(self._process_id, "SIGKILL")
        for process in self._members:
            _kill(process)

    async def ended_within(self, grace_s: float) -> None:
        """Wait up to `grace_s` for the end of the child, not of its pipes: a descendant may hold them open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not self._has_ended():  # noqa: ASYNC110 - asyncio tells no other way
                    await asyncio.sleep(_LOOK_S)


def _signal_group(process_id: int, name: str) -> bool:
    # returns whether the system has signals
    if sys.platform == "win32":
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, getattr(signal, name))
    return True


def _members(process_id: int) -> list[psutil.Process]:
    """Return a process and its descendants, children first, as far as they can be seen."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(process_id)
        return [*process.children(recursive=True), process]
    return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):  # it has ended; psutil kills no other process of the same number
        process.kill()


_WAIT_FACTOR = 10  # a child that gets no processor is waited for this often as long
_LEAST_POLL_S, _MOST_POLL_S = 0.05, 0.2


class Excess(Enum):
    """What a child took too much of."""

    TIME = "time"
    MEMORY = "memory"


class ChildWatch:
    """A context manager that kills `child` after `timeout_s` of its processor time, or ten times as long on the clock,
    and past `max_bytes` of resident memory; `excess` tells which, None while neither happened. Who lets it go on step
    by step, by `allow`, also sets what it may take in all, by `allow_in_all`."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float, max_bytes: float = math.inf) -> None:
        self.excess: Excess | None = None
        self._child = child
        self._max_bytes = max_bytes
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="child-watch", daemon=True)
        self._total_limit_s = self._total_deadline_s = self._begun_s = math.inf
        self._seen_s = 0.0
        self.allow(timeout_s)

    def allow(self, timeout_s: float) -> None:
        """Give the child this much processor time from now on."""
        self._limit_s = self._usage()[0] + timeout_s
        self._deadline_s = time.monotonic() + _WAIT_FACTOR * timeout_s

    def allow_in_all(self, total_s: float) -> None:
        """Let no later `allow` give the child more than this much processor time from now on, which `used_s` counts."""
        self._begun_s = self._usage()[0]
        self._total_limit_s = self._begun_s + total_s
        self._total_deadline_s = time.monotonic() + _WAIT_FACTOR * total_s

    def used_s(self) -> float:
        """Return the processor time that the child has taken since `allow_in_all`, as it was last seen; 0 before."""
        self._usage()
        return max(0.0, self._seen_s - self._begun_s)

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
            limit_s = min(self._limit_s, self._total_limit_s)
            if self.excess is None and (
                used_s >= limit_s or time.monotonic() >= min(self._deadline_s, self._total_deadline_s)
            ):
                self.excess = Excess.TIME
            if self.excess is not None:
                self._child.kill()
                return
            pause_s = min(_MOST_POLL_S, max(_LEAST_POLL_S, limit_s - used_s))

    def _usage(self) -> tuple[float, int]:
        """Return the processor time and the resident bytes of the child; of one that ended infinite and 0."""
        try:
            process = psutil.Process(self._child.pid)
            times = process.cpu_times()
            n_bytes = int(process.memory_info().rss)
            self._seen_s = max(self._seen_s, float(times.user + times.system))  # a zombie has none
            return float(times.user + times.system), n_bytes
        except psutil.Error:
            return math.inf, 0
