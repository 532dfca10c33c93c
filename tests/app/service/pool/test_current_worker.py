from __future__ import annotations

import asyncio

import pytest

from app.engine.protocol.messages import EngineConfig, EngineMetrics, GetMetrics, Load, Ready, WorkerMessage
from app.service.pool.current_worker import CurrentWorker
from quantizer.errors import EngineError, UserError
from quantizer.process import python_command

LOAD = Load("tiny.gguf", EngineConfig(n_ctx=256))


async def test_a_worker_is_heard_until_a_frame_says_that_it_is_to_end() -> None:
    worker, heard = CurrentWorker(python_command("app.engine.worker", "--fake")), []
    enough = EngineError("Enough.", "Stop.")

    def take(frame: WorkerMessage) -> UserError | None:
        heard.append(type(frame))
        if isinstance(frame, Ready):
            assert worker.pid is not None
            worker.send(GetMetrics("now"))
        return enough if isinstance(frame, EngineMetrics) else None

    worker.send(GetMetrics("before there is any"))
    assert await worker.run(LOAD, take) is enough
    assert heard[-2:] == [Ready, EngineMetrics]
    assert worker.pid is None


async def test_one_that_is_left_is_gone() -> None:
    worker, is_ready = CurrentWorker(python_command("app.engine.worker", "--fake")), asyncio.Event()

    def take(frame: WorkerMessage) -> UserError | None:
        if isinstance(frame, Ready):
            is_ready.set()
        return None

    running = asyncio.create_task(worker.run(LOAD, take))
    async with asyncio.timeout(20):
        await is_ready.wait()
        running.cancel()
        await asyncio.wait({running})
    assert worker.pid is None


async def test_a_command_that_is_none_is_said() -> None:
    with pytest.raises(EngineError, match="cannot be started"):
        await CurrentWorker(["/no/such/program"]).run(LOAD, lambda _: None)
