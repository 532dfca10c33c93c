"""Threads that run one at a time, while the loop waits for them, and give way only where they wait.

The order of threads and loop is so drawn from the seed as everything else is.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.battery.world.loop import SimulatedLoop

__all__ = ["KilledError", "SimulatedEvent", "SimulatedQueue", "Turns", "pause"]


class KilledError(BaseException):
    """Ends what a simulated process that was killed still does, where it does it."""


class Turns:
    """The threads of a simulated process, which run one at a time while the loop waits for them."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.is_killed = False
        self._threads: list[_Thread] = []

    def begin(self, work: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        """Run `work` in a thread from now on; `on_end` gets its error, None for none."""
        thread = _Thread(self, work, on_end)
        self._threads.append(thread)
        self._loop.call_soon(thread.resume, context=Context())

    def pause(self, delay_s: float) -> None:
        """Let others run for a while, in a thread of the process."""
        self.wait(lambda: False, delay_s, [])

    def kill(self) -> None:
        """End all threads where they wait."""
        self.is_killed = True
        for thread in self._threads:
            if thread.is_waiting:
                self._loop.call_soon(thread.resume, context=Context())

    def wait(
        self, has_happened: Callable[[], bool], timeout_s: float | None, waiting: list[Callable[[], None]]
    ) -> bool:
        """Wait in a thread of the process until something has happened, or for `timeout_s`; what makes it happen calls
        what is in `waiting`. Return whether it has happened."""
        thread = _Thread.current()
        assert thread is not None, "a thread of the process waits"
        clock = self._loop.clock
        until_s = None if timeout_s is None else clock.now_s + timeout_s

        def wake() -> None:
            self._loop.call_soon(thread.resume, context=Context())

        while not (self.is_killed or has_happened() or (until_s is not None and clock.now_s >= until_s)):
            timer = None if until_s is None else self._loop.call_at(until_s, thread.resume, context=Context())
            waiting.append(wake)
            thread.give_way()
            waiting.remove(wake)
            if timer is not None:
                timer.cancel()
        if self.is_killed:
            raise KilledError
        return has_happened()


class _Thread:
    """A thread that runs only between `resume` and `give_way`."""

    _own = threading.local()

    def __init__(self, turns: Turns, work: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        self.turns = turns
        self._go, self._gave_way = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._gave_way.acquire()
        self._work, self._on_end = work, on_end
        self.is_waiting = True
        self._has_ended = False
        threading.Thread(target=self._run, daemon=True).start()

    @classmethod
    def current(cls) -> _Thread | None:
        """Return the one that runs; None in the loop."""
        return getattr(cls._own, "thread", None)

    def resume(self) -> None:
        """Let the thread run until it waits again or ends. Called by the loop, which waits meanwhile."""
        if self._has_ended or not self.is_waiting:
            return
        self.is_waiting = False
        self._go.release()
        self._gave_way.acquire()

    def give_way(self) -> None:
        self.is_waiting = True
        self._gave_way.release()
        self._go.acquire()

    def _run(self) -> None:
        self._own.thread = self
        self._go.acquire()
        error: BaseException | None = None
        if self.turns.is_killed:
            error = KilledError()
        else:
            try:
                self._work()
            except BaseException as raised:
                error = raised
        self._has_ended = True
        self._on_end(error)
        self._gave_way.release()


def pause(delay_s: float) -> bool:
    """Let others run for a while, in a thread of a simulated process; return False in the loop, which cannot wait."""
    thread = _Thread.current()
    if thread is not None:
        thread.turns.pause(delay_s)
    return thread is not None


class SimulatedQueue:
    """Takes the place of `queue.SimpleQueue` in a simulated process."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()
        self._waiting: list[Callable[[], None]] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        for wake in self._waiting:
            wake()

    def get(self, timeout: float | None = None) -> Any:
        if not self._turns.wait(lambda: bool(self._items), timeout, self._waiting):
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class SimulatedEvent:
    """Takes the place of `threading.Event` in a simulated process."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for wake in self._waiting:
            wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._turns.wait(lambda: self._is_set, timeout, self._waiting)
