from __future__ import annotations

import asyncio
import threading

import pytest

from app.service.threads import run_in_thread
from quantizer.system.errors import EngineError
from tests.patience import PATIENCE_S


async def test_work_in_a_thread_may_block_and_returns_its_result() -> None:
    is_seen = threading.Event()

    async def work() -> str:
        assert is_seen.wait(PATIENCE_S)
        return threading.current_thread().name

    running = asyncio.create_task(run_in_thread(work))
    await asyncio.sleep(0)
    is_seen.set()  # the loop goes on meanwhile
    assert await running == "run_in_thread"


async def test_its_error_is_raised() -> None:
    async def work() -> None:
        raise EngineError("gone")

    with pytest.raises(EngineError, match="gone"):
        await run_in_thread(work)


async def test_cancelling_ends_the_work() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run_in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 10)
