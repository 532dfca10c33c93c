"""Blocking work in threads, so that it holds up neither the event loop nor the end of the service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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
    Cancelling this cancels the work at its next pause. A thread that hangs is abandoned when the process ends."""
    result: Future[Result] = Future()
    waiting = asyncio.wrap_future(result)
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def register() -> Result:
        task = asyncio.current_task()
        assert task is not None
        tasks.append((asyncio.get_running_loop(), task))
        if waiting.cancelled():
            raise asyncio.CancelledError
        return await work()

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(asyncio.run(register()))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="run_in_thread", daemon=True).start()
    try:
        return await waiting
    finally:
        for own_loop, task in tasks:
            with contextlib.suppress(RuntimeError):  # it has ended
                own_loop.call_soon_threadsafe(task.cancel)
