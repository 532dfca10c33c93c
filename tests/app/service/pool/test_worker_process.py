from __future__ import annotations

import asyncio
import sys

import pytest

from app.service.pool.worker_process import WorkerProcess, WorkerStarter
from app.service.starting import start_worker_process
from quantizer.system.errors import EngineError


async def _death_of(program: str) -> EngineError:
    worker = await WorkerProcess.start([sys.executable, "-c", program])
    try:
        assert [message async for message in worker.messages()] == []
    finally:
        death = await worker.end(0.5)
    return death


async def test_a_worker_that_dies_is_reported_with_its_last_output() -> None:
    death = await _death_of("import sys; sys.exit('GGML_ASSERT(n > 0) failed')")
    assert death.cause == "The engine process died (exit status 1); its last output: GGML_ASSERT(n > 0) failed."


async def test_the_death_of_a_worker_is_explained_only_by_what_it_wrote_since_the_request() -> None:
    program = "import sys; print('an old warning', file=sys.stderr, flush=True); input(); sys.exit('no memory')"
    worker = await WorkerProcess.start([sys.executable, "-c", program])
    while not worker._child.stderr.lines:  # noqa: ASYNC110 - the process itself is waited for
        await asyncio.sleep(0.01)
    worker.forget_output()
    worker._child.write(b"go\n")
    assert [message async for message in worker.messages()] == []
    death = await worker.end(5.0)
    assert death.cause == "The engine process died (exit status 1); its last output: no memory."


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
async def test_a_worker_ended_by_a_signal_is_reported_by_its_name() -> None:
    death = await _death_of("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "SIGSEGV" in death.cause
    assert "again" in death.remedy


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
async def test_a_worker_whose_llama_cpp_is_for_another_processor_says_how_to_build_it() -> None:
    death = await _death_of("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert death.cause.startswith("llama.cpp was built for another processor")
    assert "again" not in death.remedy
    assert "llama-cpp-python" in death.remedy


async def test_a_worker_that_closes_its_pipe_and_goes_on_is_killed() -> None:
    death = await _death_of("import os, time; os.close(1); time.sleep(60)")
    assert death.cause.startswith("The engine process died")


async def test_a_worker_that_writes_something_else_is_an_engine_error() -> None:
    worker = await WorkerProcess.start([sys.executable, "-c", "print('llama.cpp says hello')"])
    try:
        with pytest.raises(EngineError, match="invalid message"):
            await anext(worker.messages())
    finally:
        await worker.end(0.5)


async def test_a_program_that_cannot_be_started_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="cannot be started"):
        await WorkerProcess.start(["/nonexistent/python"])


_WAITING = [sys.executable, "-c", "input()"]


async def test_the_first_worker_is_the_process_that_runs_already_and_the_next_a_new_one() -> None:
    started = await start_worker_process(_WAITING)
    async with WorkerStarter(_WAITING, started) as start_worker:
        first, second = await start_worker(), await start_worker()
    try:
        assert first.pid == started.pid
        assert second.pid != started.pid
    finally:
        await first.end(5.0)
        await second.end(5.0)


async def test_a_process_that_no_worker_needed_ends_with_its_starter() -> None:
    started = await start_worker_process(_WAITING)
    async with WorkerStarter(_WAITING, started):
        pass
    assert await started.wait() != 0
