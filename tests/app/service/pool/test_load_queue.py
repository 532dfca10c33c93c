from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.engine.request import Request
from app.service.pool.engine_client import EngineClient, EngineOwner
from app.service.pool.load_queue import LoadQueue
from app.service.pool.worker_process import StartWorker, WorkerProcess
from quantizer.system.errors import EngineError
from quantizer.system.process import python_command
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker

THREADS = thread_worker(step_ms=2)
ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)


class Owner(EngineOwner):
    """Loads engines one after another."""

    def __init__(self, queue: LoadQueue) -> None:
        self.admit = queue.admit  # type: ignore[method-assign]
        self.on_idle = queue.on_idle  # type: ignore[method-assign]


class Engines:
    """Engines called a, b, c … over the fake backend, in a memory that a script describes."""

    def __init__(self, total_bytes: int, sizes: Mapping[str, int], start_worker: StartWorker) -> None:
        self.memory = FakeMemory(total_bytes, sizes)
        queue = LoadQueue(self.memory, lambda: self.engines.values())
        config = EngineConfig(n_ctx=256)
        self.engines = {name: EngineClient(Path(f"{name}.gguf"), config, start_worker, Owner(queue)) for name in sizes}
        self._n_requests = 0

    def __getitem__(self, name: str) -> EngineClient:
        return self.engines[name]

    @property
    def ready(self) -> list[str]:
        return [name for name, engine in self.engines.items() if engine.status.state == "ready"]

    async def ask(self, name: str, n_tokens: int = 3) -> str:
        """Let one answer come and return who gave it."""
        self._n_requests += 1
        request = Request(request_id=str(self._n_requests), prompt="hello", max_tokens=n_tokens, ignore_eos=True)
        async with self[name].answer(request) as events:
            async for _ in events:
                assert len(self.ready) <= 2, "more than memory has room for"
        return name


async def _drain(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


@asynccontextmanager
async def _engines(
    total_bytes: int, sizes: Mapping[str, int], start_worker: StartWorker = THREADS
) -> AsyncIterator[Engines]:
    engines = Engines(total_bytes, sizes, start_worker)
    try:
        async with asyncio.timeout(30):
            yield engines
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines.engines.values()))


async def test_with_memory_for_two_the_third_replaces_the_least_recently_used() -> None:
    async with _engines(20, {"a": 10, "b": 10, "c": 10}) as engines:
        seen = []
        for name in "abcab":
            await engines.ask(name)
            seen.append("".join(engines.ready))
    assert seen == ["a", "ab", "bc", "ac", "ab"]
    assert engines.memory.most_bytes == 20


async def test_using_a_model_again_keeps_it_loaded() -> None:
    async with _engines(20, {"a": 10, "b": 10, "c": 10}) as engines:
        for name in "abac":
            await engines.ask(name)
        assert engines.ready == ["a", "c"]


async def test_none_is_unloaded_while_it_answers() -> None:
    async with _engines(10, {"a": 10, "b": 10}) as engines:
        async with engines["a"].answer(ENDLESS) as events:
            await anext(events)
            request = asyncio.create_task(engines.ask("b"))
            for _ in range(3):
                await anext(events)
            assert engines.ready == ["a"]
            assert engines["b"].status.state == "loading", "it waits"
        assert await request == "b"
        assert engines.ready == ["b"]


async def test_two_that_do_not_fit_together_take_turns_however_many_ask() -> None:
    async with _engines(10, {"a": 10, "b": 10}) as engines:
        order: list[str] = []

        async def ask_again(name: str) -> None:
            order.append(await engines.ask(name))
            order.append(await engines.ask(name))

        await asyncio.gather(*(ask_again(name) for name in "aaabbb"))
    assert "".join(order) == "aaabbbaaabbb", "who comes again waits behind who came before"
    assert engines.memory.most_bytes <= 10


async def test_a_cancelled_request_evicts_nothing() -> None:
    async with _engines(10, {"a": 10, "b": 10}) as engines:
        async with engines["a"].answer(ENDLESS) as events:
            await anext(events)
            request = asyncio.create_task(engines.ask("b"))
            for _ in range(5):
                await anext(events)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        assert await engines.ask("a") == "a"
        assert (engines.ready, engines["b"].status.state) == (["a"], "unloaded")


async def test_a_model_that_would_not_run_alone_is_refused_and_evicts_nothing() -> None:
    async with _engines(20, {"a": 10, "b": 30}) as engines:
        await engines.ask("a")
        for _ in range(4):  # no fault of the engine's: it is said as often as somebody asks
            with pytest.raises(EngineError, match="b is too large"):
                await engines.ask("b")
        assert engines.ready == ["a"]


async def test_a_confirmed_model_gets_all_memory() -> None:
    async with _engines(20, {"a": 10, "b": 30}) as engines:
        await engines.ask("a")
        engines["b"].start(UnfitPolicy.LOAD)
        assert await engines.ask("b") == "b"
        assert engines.ready == ["b"]


async def test_a_worker_that_dies_while_it_is_waited_for_counts_as_unloaded() -> None:
    command = python_command("app.engine.worker", "--fake", "--fake-step-ms", "2")
    async with _engines(10, {"a": 10, "b": 10}, partial(WorkerProcess.start, command)) as engines:
        async with engines["a"].answer(ENDLESS) as events:
            await anext(events)
            request = asyncio.create_task(engines.ask("b"))
            for _ in range(5):
                await anext(events)
            assert engines["a"].worker_pid is not None
            os.kill(engines["a"].worker_pid, signal.SIGTERM)
            with pytest.raises(EngineError, match="died"):
                await _drain(events)
        assert await request == "b"
