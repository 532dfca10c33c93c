"""A simulated process: its tasks, its threads, what it holds of the disk; and its end at any moment, as by `kill -9`.

The service is one, so are the terminal app and a job that writes files. They share the loop and the folder, and nothing
else that they would not share on a machine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Protocol
from weakref import WeakSet

from tests.battery.world.loop import LIFE, SimulatedLoop
from tests.battery.world.threads import KilledError, Turns

__all__ = ["Life", "Resource"]

_N_WORKERS = 6  # of asyncio's own pool of threads, on two processors


class Resource(Protocol):
    """What a process holds of the system, which takes it back when it ends in whatever way."""

    def take_back(self) -> None: ...


class Life:
    """A process with the number `pid`. `on_end` is called when it has ended; `errors` are those that its threads ended
    with, which a real one would not survive. It dies at its operation `dies_at` on the disk, if it comes to that."""

    def __init__(self, loop: SimulatedLoop, pid: int, name: str) -> None:
        self.pid, self.name = pid, name
        self.is_over = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.held: list[Resource] = []
        self.on_end: list[Callable[[], object]] = []
        self.errors: list[str] = []
        self.n_operations = 0
        self.dies_at: int | None = None
        self.unfinished: list[asyncio.Task[Any]] = []  # of one that was killed: nothing may close them
        self.turns = Turns(loop)
        self._loop = loop
        self._pools: dict[Executor | None, _Pool] = {}

    def context(self) -> Context:
        """Return a new context in which this process is the one that runs."""
        context = Context()
        context.run(LIFE.set, self)
        return context

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(work, context=self.context())

    def work(self, executor: Executor | None, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """Do `work` in a thread of `executor`, asyncio's own for None; `future` gets its outcome."""
        if executor is not None and executor._shutdown:  # type: ignore[attr-defined]
            raise RuntimeError("cannot schedule new futures after shutdown")
        if executor not in self._pools:
            n_workers = _N_WORKERS if executor is None else executor._max_workers  # type: ignore[attr-defined]
            self._pools[executor] = _Pool(self, self._loop, n_workers)
        self._pools[executor].add(work, future)

    def die(self) -> None:
        """End now, wherever it is: what is on the disk stays, and nothing more is done."""
        if not self.is_over:
            Context().run(self._end, True)

    def end(self) -> None:
        """End after everything was done: only the system still takes back what it gave."""
        if not self.is_over:
            Context().run(self._end, False)

    def _end(self, is_killed: bool) -> None:
        self.is_over = True
        if is_killed:
            self.unfinished = [task for task in self.tasks if not task.done()]
            self._loop.forget(self)
        for resource in reversed(self.held):
            resource.take_back()
        self.turns.kill()
        for each in self.on_end:
            each()


class _Pool:
    """The threads of an executor, begun as they are needed. Work begins in the order in which it came."""

    def __init__(self, life: Life, loop: SimulatedLoop, n_workers: int) -> None:
        self._life, self._loop = life, loop
        self._n_free, self._n_left = 0, n_workers
        self._waiting: list[Callable[[], None]] = []
        self._items: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    def add(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._items.append((work, future))
        if self._n_free < len(self._items) and self._n_left:
            self._n_left -= 1
            self._life.turns.begin(self._run, self._on_end)
        else:
            for wake in self._waiting:
                wake()

    def _run(self) -> None:
        LIFE.set(self._life)
        clock, turns = self._loop.clock, self._life.turns
        while True:
            self._n_free += 1
            turns.wait(lambda: bool(self._items), None, self._waiting)
            self._n_free -= 1
            if clock.chance.random() < 0.5 and (delay_s := clock.delay_s(0.002)):
                turns.pause(delay_s)
            if not self._items:  # another took it meanwhile
                continue
            work, future = self._items.popleft()
            if future.cancelled():  # before it began
                continue
            result, error = None, None
            try:
                result = work()
            except KilledError:
                raise
            except BaseException as raised:
                error = raised
            # what it did is done; the loop learns of it later
            delay_s = clock.delay_s(0.001) if clock.chance.random() < 0.5 else 0.0
            self._loop.call_later(delay_s, _settle, future, result, error, context=self._life.context())

    def _on_end(self, error: BaseException | None) -> None:
        if not isinstance(error, KilledError):
            self._life.errors.append(f"a thread of {self._life.name} ended by {error!r}")


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # nobody waits any more
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
