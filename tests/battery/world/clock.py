"""A simulated clock: the time, the random numbers and the waiting of this process come from one seed.

Functions of the standard library that tell the time or wait are replaced once for all, before anything else is
imported: many parts have one of them as the default of a parameter. Without a world they do what they always did.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Clock", "living_by"]

_BEGIN_S = 1.8e9  # of the clock of the day


class Clock:
    """The time of a world, which begins at 0 s, and its chances."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.chance = random.Random(seed)
        self.bytes = random.Random(f"bytes {seed}")  # apart: a module that is imported first draws some, once
        self.sleep: Callable[[float], None] = self._pass  # of whoever blocks its thread

    def _pass(self, delay_s: float) -> None:
        self.now_s += delay_s

    def time(self) -> float:
        return _BEGIN_S + self.now_s

    def delay_s(self, usual_s: float) -> float:
        """Return a delay that is mostly near `usual_s`, sometimes none, and rarely ten times as long."""
        drawn = self.chance.random()
        if drawn < 0.15:
            return 0.0
        return usual_s * (10.0 if drawn > 0.97 else self.chance.uniform(0.2, 2.0))


class _Ways:
    """What this process asks for the time and for random numbers: a simulated clock, where one runs, else the real
    ones. Many parts take a function of `time` as the default of a parameter, so it is replaced before they are
    imported, and once for all."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
            setattr(time, name, self._asking(getattr(time, name), lambda clock: clock.now_s))
        for name in ("monotonic_ns", "time_ns"):
            setattr(time, name, self._asking(getattr(time, name), lambda clock: int(clock.time() * 1e9)))
        time.time = self._asking(time.time, lambda clock: clock.time())
        time.sleep = self._waiting(time.sleep)
        # uuid asks os, secrets and random.SystemRandom ask random
        os.urandom = random._urandom = self._random_bytes(os.urandom)  # type: ignore[attr-defined]

    def _asking(self, real: Callable[[], Any], simulated: Callable[[Clock], Any]) -> Callable[[], Any]:
        def ask() -> Any:
            return real() if self.clock is None else simulated(self.clock)

        return ask

    def _waiting(self, real: Callable[[float], None]) -> Callable[[float], None]:
        def wait(delay_s: float) -> None:
            (real if self.clock is None else self.clock.sleep)(delay_s)

        return wait

    def _random_bytes(self, real: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def ask(n_bytes: int) -> bytes:
            return real(n_bytes) if self.clock is None else self.clock.bytes.randbytes(n_bytes)

        return ask


_ways = _Ways()


@contextmanager
def living_by(clock: Clock) -> Iterator[None]:
    """Let this process live by `clock` inside the context. What it imports must be imported after this module."""
    _ways.clock = clock
    try:
        yield
    finally:
        _ways.clock = None
