"""How much of the processors other programs take, and the hypervisor: what a measurement of speed has to know.

Owns the share between two readings, and what counts as quiet. The arithmetic is pure. Independent of what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

QUIET_SHARE = 0.2  # of the processors; an app that draws an answer takes 0.15 of two
_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # they are in `user` and `nice`
_N_ANCESTORS = 2  # the service, and the app that started it


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all processors that this process may use, in total and idle, and those that our processes computed.

    Time that a hypervisor stole is neither idle nor ours.
    """

    total_s: float
    idle_s: float
    own_s: float


def others_share(before: CpuTimes, after: CpuTimes) -> float | None:
    """Return the share of the processors that others took between two readings; None where too little time passed."""
    total_s = after.total_s - before.total_s
    if total_s <= 0:
        return None
    ours_s = (after.idle_s - before.idle_s) + (after.own_s - before.own_s)
    return min(1.0, max(0.0, 1 - ours_s / total_s))


def is_quiet(share: float | None) -> bool:
    """Return whether the share of the processors that others take is known to be small."""
    return share is not None and share <= QUIET_SHARE


def read_cpu_times() -> CpuTimes:
    """Return the present times of the processors, of this process and of those that started it."""
    usable = os.sched_getaffinity(0) if sys.platform == "linux" else None
    processors = [times for i, times in enumerate(psutil.cpu_times(percpu=True)) if usable is None or i in usable]
    total_s = idle_s = 0.0
    for times in processors:
        idle_s += _sum(times, _IDLE)
        total_s += _sum(times, times._fields) - _sum(times, _COUNTED_TWICE)
    return CpuTimes(total_s, idle_s, sum(map(_computed_s, _own_processes())))


def _sum(times: object, names: Iterable[str]) -> float:
    return sum(getattr(times, name, 0.0) for name in names)


def _own_processes() -> list[psutil.Process]:
    process = psutil.Process()
    try:
        return [process, *process.parents()[:_N_ANCESTORS]]
    except psutil.Error:  # one of them has just ended
        return [process]


def _computed_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
