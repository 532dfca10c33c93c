"""Work that waits for the network, in a thread of its own: it holds up neither the event loop nor the service's end.

Owns how its result comes back, and that who stops waiting ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["beside"]

Result = TypeVar("Result")


async def beside(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` in an event loop of its own, which it may block; return or raise what it does.

    Cancelling this cancels that at its next pause. A thread that hangs is left behind when the process ends.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def noted() -> Result:
        task = asyncio.current_task()
        assert task is not None
        tasks.append((asyncio.get_running_loop(), task))
        if result.cancelled():
            raise asyncio.CancelledError
        return await work()

    def run() -> None:
        try:
            _tell(loop, result, asyncio.run(noted()), None)
        except BaseException as error:
            _tell(loop, result, None, error)

    threading.Thread(target=run, name="beside", daemon=True).start()
    try:
        return await result
    finally:
        for own, task in tasks:
            with contextlib.suppress(RuntimeError):  # it has ended
                own.call_soon_threadsafe(task.cancel)


def _tell(
    loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the service has ended first
        loop.call_soon_threadsafe(settle)
