"""An asyncio loop that lives by a simulated clock and knows whose work each callback is.

Nothing waits for anything real: the loop jumps to the next timer. Several simulated processes share it; when one is
killed, none of its callbacks run any more, not even the `finally` of a task.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.battery.world.clock import Clock

if TYPE_CHECKING:
    from tests.battery.world.lives import Life

__all__ = ["LIFE", "SimulatedLoop", "StuckError"]

_TURN_S = 1e-6  # of the loop: what waits for less than the clock can tell would never end
_MOST_TURNS = 800_000  # of the loop in one run: more is a loop that never waits

# The simulated process that runs; None for the world around all of them.
LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class StuckError(Exception):
    """Everything waits for something that nothing will bring, or the loop turns without end."""


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


# Starts the program of a child process: its command, the protocol of its pipes and its environment.
StartProcess = Callable[[tuple[str, ...], asyncio.SubprocessProtocol, Mapping[str, str]], asyncio.SubprocessTransport]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that lives by `clock`. Child processes are those of `start_process`."""

    _ready: Any  # of BaseEventLoop: what runs next, and the timers
    _scheduled: Any

    def __init__(self, clock: Clock, start_process: StartProcess) -> None:
        self.clock = clock
        self._start_process = start_process
        self._has_killed = False
        super().__init__(_NoSelector(clock))

    def time(self) -> float:
        return self.clock.now_s

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self._unless_dead(super().call_soon(callback, *args, context=context))

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return self._unless_dead(super().call_at(when, callback, *args, context=context))

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            life.tasks.add(task)
        return task

    def outside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task of the world, whoever asks for it."""
        return self.create_task(work, context=Context())

    def forget(self, life: Life) -> None:
        """Drop all that a process would have done yet."""
        self._has_killed = True
        for handle in (*self._ready, *self._scheduled):
            if handle._context.get(LIFE) is life:
                handle.cancel()

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Close a generator that nobody holds any more, unless its process was killed in the middle of it."""
        if (life := LIFE.get()) is None or not life.is_over:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def _unless_dead(self, handle: Any) -> Any:
        if self._has_killed and (life := handle._context.get(LIFE)) is not None and life.is_over:
            handle.cancel()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run `func` in a thread of the process that asks; the world itself does its work at once."""
        life, future = LIFE.get(), self.create_future()
        if life is not None:
            life.work(executor, partial(func, *args), future)
        else:
            future.set_result(func(*args))
        return future

    async def subprocess_exec(
        self, protocol_factory: Callable[[], Any], program: Any, *args: Any, **options: Any
    ) -> tuple[asyncio.SubprocessTransport, Any]:
        await asyncio.sleep(self.clock.delay_s(0.02))
        protocol = protocol_factory()
        return self._start_process((program, *args), protocol, options.get("env") or {}), protocol
