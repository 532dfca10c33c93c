"""A simulated clock, and an asyncio loop and threads that live by it: everything that waits is drawn from one seed.

Nothing here waits for anything real. The loop jumps to the next timer; work that a program hands to a thread runs in
between, and takes as long as the seed says; threads of a simulated process run one at a time and give way only where
they wait. So a run is the same each time.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = [
    "Clock",
    "KilledError",
    "SimulatedEvent",
    "SimulatedLoop",
    "SimulatedQueue",
    "StuckError",
    "Turns",
    "living_by",
]

_BEGIN_S = 1.8e9  # of the clock of the day
_TURN_S = 1e-6  # of the loop: what waits for less than the clock can tell would never end
_MOST_TURNS = 400_000  # of the loop in one run: more is a loop that never waits


class StuckError(Exception):
    """Everything waits for something that nothing will bring, or the loop turns without end."""


class KilledError(BaseException):
    """Ends the threads of a simulated process that was killed."""


class Clock:
    """The time of a world, which begins at 0 s, and its chances."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.chance = random.Random(seed)

    def time(self) -> float:
        return _BEGIN_S + self.now_s

    def delay_s(self, usual_s: float) -> float:
        """Return a delay that is mostly near `usual_s`, sometimes none, and rarely ten times as long."""
        drawn = self.chance.random()
        if drawn < 0.15:
            return 0.0
        return usual_s * (10.0 if drawn > 0.97 else self.chance.uniform(0.2, 2.0))


class _NoSelector(selectors.BaseSelector):
    """Waits for no file: it moves the clock to the next timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self._n_turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._n_turns += 1
        if timeout is None:
            raise StuckError(f"nothing happens any more after {self._clock.now_s:.3f} s")
        if self._n_turns > _MOST_TURNS:
            raise StuckError(f"the loop turned {_MOST_TURNS:,} times in {self._clock.now_s:.3f} s")
        self._clock.now_s += max(_TURN_S, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


# Starts the program of a child process: its command and the protocol of its pipes.
StartProcess = Callable[[tuple[str, ...], asyncio.SubprocessProtocol], asyncio.SubprocessTransport]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that lives by `clock`. Child processes are those of `start_process`."""

    def __init__(self, clock: Clock, start_process: StartProcess) -> None:
        self.clock = clock
        self._start_process = start_process
        super().__init__(_NoSelector(clock))

    def time(self) -> float:
        return self.clock.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run `func` after a while; one that is cancelled before it began never runs, as in a pool of threads."""
        future = self.create_future()
        begins_at_once = self.clock.chance.random() < 0.7

        def run() -> None:
            if future.cancelled() and not begins_at_once:
                return
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(result)

        self.call_later(self.clock.delay_s(0.003), run)
        return future

    async def subprocess_exec(
        self, protocol_factory: Callable[[], Any], program: Any, *args: Any, **_options: Any
    ) -> tuple[asyncio.SubprocessTransport, Any]:
        await asyncio.sleep(self.clock.delay_s(0.02))
        protocol = protocol_factory()
        return self._start_process((program, *args), protocol), protocol


class Turns:
    """The threads of a simulated process, which run one at a time while the loop waits for them."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._is_killed = False
        self._threads: list[_Thread] = []

    def begin(self, work: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        """Run `work` in a thread from now on; `on_end` gets its error, None for none."""
        thread = _Thread(work, on_end)
        self._threads.append(thread)
        self._loop.call_soon(thread.resume)

    def kill(self) -> None:
        """End all threads where they wait."""
        self._is_killed = True
        for thread in self._threads:
            if thread.is_waiting:
                self._loop.call_soon(thread.resume)

    def wait(
        self, has_happened: Callable[[], bool], timeout_s: float | None, waiting: list[Callable[[], None]]
    ) -> bool:
        """Wait in a thread of the process until something has happened, or for `timeout_s`; what makes it happen calls
        what is in `waiting`. Return whether it has happened."""
        thread = _Thread.current()
        clock = self._loop.clock
        until_s = None if timeout_s is None else clock.now_s + timeout_s

        def wake() -> None:
            self._loop.call_soon(thread.resume)

        while not (self._is_killed or has_happened() or (until_s is not None and clock.now_s >= until_s)):
            timer = None if until_s is None else self._loop.call_at(until_s, thread.resume)
            waiting.append(wake)
            thread.give_way()
            waiting.remove(wake)
            if timer is not None:
                timer.cancel()
        if self._is_killed:
            raise KilledError
        return has_happened()


class _Thread:
    """A thread that runs only between `resume` and `give_way`."""

    _own = threading.local()

    def __init__(self, work: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        self._go, self._gave_way = threading.Semaphore(0), threading.Semaphore(0)
        self._work, self._on_end = work, on_end
        self.is_waiting = True
        self._has_ended = False
        threading.Thread(target=self._run, daemon=True).start()

    @classmethod
    def current(cls) -> _Thread:
        thread: _Thread = cls._own.thread
        return thread

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
        try:
            self._work()
        except BaseException as raised:
            error = raised
        self._has_ended = True
        self._on_end(error)
        self._gave_way.release()


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
        # uuid asks os, secrets and random.SystemRandom ask random
        os.urandom = random._urandom = self._random_bytes(os.urandom)  # type: ignore[attr-defined]

    def _asking(self, real: Callable[[], Any], simulated: Callable[[Clock], Any]) -> Callable[[], Any]:
        def ask() -> Any:
            return real() if self.clock is None else simulated(self.clock)

        return ask

    def _random_bytes(self, real: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def ask(n_bytes: int) -> bytes:
            return real(n_bytes) if self.clock is None else self.clock.chance.randbytes(n_bytes)

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
