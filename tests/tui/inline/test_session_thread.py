"""An event loop in a thread."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quantizer.system.errors import UsageError
from tui.inline.session import LoopThread


async def _interrupting(ended: list[str], *, cleanup_s: float = 0.0) -> None:
    """Press Ctrl-C in the main thread, and wait to be stopped."""
    _thread.interrupt_main()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(cleanup_s)
        ended.append("cleaned up")


def test_work_is_done_in_another_thread_and_its_result_returned():
    async def work() -> str:
        return threading.current_thread().name

    with LoopThread() as loop:
        assert loop.run(work()) == "loop"


def test_what_the_work_raises_is_raised():
    async def work() -> None:
        raise UsageError("No.")

    with LoopThread() as loop, pytest.raises(UsageError):
        loop.run(work())


def test_ctrl_c_cancels_the_work_and_waits_until_it_has_cleaned_up():
    ended: list[str] = []
    with LoopThread() as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.run(_interrupting(ended, cleanup_s=0.05))
        assert ended == ["cleaned up"]
        assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"


def test_leaving_ends_what_is_still_under_way():
    ended: list[str] = []

    async def begin() -> None:
        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("left")

        begun.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    begun: list[asyncio.Task[None]] = []
    with LoopThread() as loop:
        loop.run(begin())
    assert ended == ["left"]


def test_a_manager_is_left_on_the_loop_however_the_block_ends():
    seen: list[str] = []

    @asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        seen.append(threading.current_thread().name)
        yield "entered"
        seen.append(threading.current_thread().name)

    def stay(value: str) -> None:
        assert value == "entered"
        raise UsageError("No.")

    with LoopThread() as loop, pytest.raises(UsageError), loop.within(manager()) as value:
        stay(value)
    assert seen == ["loop", "loop"]
