"""The processor time that a server takes, as a clock: what it does beside other programs is the same as alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["processor_clock"]

_SCHEDULER_CLOCK = 2  # source: MAKE_PROCESS_CPUCLOCK and CPUCLOCK_SCHED of linux/posix-timers.h


def processor_clock(process_ids: Sequence[int]) -> Callable[[], float]:
    """Return a clock of the seconds that these processes, with all their threads, have computed. For Linux."""
    clocks = [~process_id << 3 | _SCHEDULER_CLOCK for process_id in process_ids]
    return lambda: sum(time.clock_gettime(clock) for clock in clocks)
