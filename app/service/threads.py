"""Blocking work in threads, so that it holds up neither the event loop nor the end of the service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_thread", "run_in_thread"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_thread(work: Callable[Parameters, Result]) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Return `work` as a coroutine function that runs in a thread; the end of the service waits for it."""

    @wraps(work)
    async def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return await asyncio.to_thread(work, *args, **kwargs)

    return run


async def run_in_thread(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` in an event loop of its own, which it may block for the network; return or raise its outcome.

    Cancelling this cancels the work at its next pause. A thread that hangs is abandoned when the process ends.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def register() -> Result:
        task = asyncio.current_task()
        assert task is not None
        tasks.append((asyncio.get_running_loop(), task))
        if result.cancelled():
            raise asyncio.CancelledError
        return await work()

    def run() -> None:
        try:
            _deliver(loop, result, asyncio.run(register()), None)
        except BaseException as error:
            _deliver(loop, result, None, error)

    threading.Thread(target=run, name="run_in_thread", daemon=True).start()
    try:
        return await result
    finally:
        for own_loop, task in tasks:
            with contextlib.suppress(RuntimeError):  # it has ended
                own_loop.call_soon_threadsafe(task.cancel)


def _deliver(
    loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def deliver() -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the service has ended first
        loop.call_soon_threadsafe(deliver)
