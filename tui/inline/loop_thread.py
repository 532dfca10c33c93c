"""An event loop in a thread: background work continues while the user types.

Owns the thread, and the effect of Ctrl-C on the caller that waits for the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")

_POLL_S = 0.2  # on Windows Ctrl-C interrupts a lock only between waits


class LoopThread:
    """A context manager, for the thread that creates it. Leaving it cancels the remaining tasks and waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # a daemon: a second Ctrl-C ends the process even if it hangs
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the loop and return its result. An exception in the caller meanwhile, such as
        KeyboardInterrupt, cancels it and is raised again after its cleanup."""
        running = _Running(work)
        try:
            self._loop.call_soon_threadsafe(running.begin)
            running.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(running.stop)
            running.wait()
            raise
        return running.result()

    @contextmanager
    def within(self, manager: AbstractAsyncContextManager[_Result]) -> Iterator[_Result]:
        """Enter `manager` on the loop for the block."""
        entered = self.run(manager.__aenter__())
        try:
            yield entered
        finally:
            self.run(manager.__aexit__(None, None, None))


class _Running(Generic[_Result]):
    """Work handed to the loop; `begin` and `stop` run in the loop's thread."""

    def __init__(self, work: Coroutine[Any, Any, _Result]) -> None:
        self._work = work
        self._task: asyncio.Task[_Result] | None = None
        self._has_ended = threading.Event()

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._has_ended.set())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # interrupted before the loop started it
            self._work.close()
            self._has_ended.set()

    def wait(self) -> None:
        while not self._has_ended.wait(_POLL_S):
            pass

    def result(self) -> _Result:
        assert self._task is not None
        return self._task.result()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
