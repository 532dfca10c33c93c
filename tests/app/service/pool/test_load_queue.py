from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.engine.request import Request
from app.service.pool.engine_client import EngineClient
from app.service.pool.load_queue import LoadQueue
from app.service.pool.memory_fake import FakeMemory
from quantizer.errors import EngineError
from quantizer.process import python_command

ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)


class Lodging:
    """Engines called a, b, c … over the fake backend, in a memory that a script describes."""

    def __init__(self, total_bytes: int, sizes: Mapping[str, int], *options: str) -> None:
        self.memory = FakeMemory(total_bytes, sizes)
        admission = LoadQueue(self.memory, lambda: [_Lodger(engine) for engine in self.engines.values()])
        command = python_command("app.engine.worker", "--fake", "--fake-step-ms", "2", *options)
        config = EngineConfig(n_ctx=256)
        self.engines = {
            name: EngineClient(Path(f"{name}.gguf"), config, command, admit=admission.admit) for name in sizes
        }
        for engine in self.engines.values():
            engine.door.watch(admission.watcher())
        self._n_asked = 0

    def __getitem__(self, name: str) -> EngineClient:
        return self.engines[name]

    @property
    def ready(self) -> list[str]:
        return [name for name, engine in self.engines.items() if engine.status.state == "ready"]

    async def ask(self, name: str, n_tokens: int = 3) -> str:
        """Let one answer come and return who gave it."""
        self._n_asked += 1
        request = Request(request_id=str(self._n_asked), prompt="hello", max_tokens=n_tokens, ignore_eos=True)
        async with self[name].answer(request) as events:
            async for _ in events:
                assert len(self.ready) <= 2, "more than memory has room for"
        return name


class _Lodger:
    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine

    def cancel_background(self) -> None:
        """Nothing is ever anticipated here."""


async def _drain(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


@asynccontextmanager
async def _lodging(total_bytes: int, sizes: Mapping[str, int], *options: str) -> AsyncIterator[Lodging]:
    lodging = Lodging(total_bytes, sizes, *options)
    try:
        async with asyncio.timeout(30):
            yield lodging
    finally:
        await asyncio.gather(*(engine.stop() for engine in lodging.engines.values()))


async def test_with_memory_for_two_the_third_takes_the_place_of_the_one_used_least() -> None:
    async with _lodging(20, {"a": 10, "b": 10, "c": 10}) as lodging:
        seen = []
        for name in "abcab":
            await lodging.ask(name)
            seen.append("".join(lodging.ready))
    assert seen == ["a", "ab", "bc", "ac", "ab"]
    assert lodging.memory.most_bytes == 20


async def test_one_that_was_used_again_is_not_the_one_used_least() -> None:
    async with _lodging(20, {"a": 10, "b": 10, "c": 10}) as lodging:
        for name in "abac":
            await lodging.ask(name)
        assert lodging.ready == ["a", "c"]


async def test_none_is_unloaded_while_it_answers() -> None:
    async with _lodging(10, {"a": 10, "b": 10}) as lodging:
        async with lodging["a"].answer(ENDLESS) as events:
            await anext(events)
            asked = asyncio.create_task(lodging.ask("b"))
            for _ in range(20):
                await anext(events)
            assert lodging.ready == ["a"]
            assert lodging["b"].status.state == "loading", "it waits"
        assert await asked == "b"
        assert lodging.ready == ["b"]


async def test_two_that_do_not_fit_together_take_turns_however_many_ask() -> None:
    async with _lodging(10, {"a": 10, "b": 10}) as lodging:
        order: list[str] = []

        async def ask_again(name: str) -> None:
            order.append(await lodging.ask(name))
            order.append(await lodging.ask(name))

        await asyncio.gather(*(ask_again(name) for name in "aaabbb"))
    assert "".join(order) == "aaabbbaaabbb", "who comes again waits behind who came before"
    assert lodging.memory.most_bytes <= 10


async def test_a_wish_that_nobody_has_any_more_makes_nobody_leave() -> None:
    async with _lodging(10, {"a": 10, "b": 10}) as lodging:
        async with lodging["a"].answer(ENDLESS) as events:
            await anext(events)
            asked = asyncio.create_task(lodging.ask("b"))
            for _ in range(5):
                await anext(events)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert await lodging.ask("a") == "a"
        assert (lodging.ready, lodging["b"].status.state) == (["a"], "unloaded")


async def test_what_would_not_run_alone_is_refused_and_nobody_leaves_for_it() -> None:
    async with _lodging(20, {"a": 10, "b": 30}) as lodging:
        await lodging.ask("a")
        for _ in range(4):  # no fault of the engine's: it is said as often as somebody asks
            with pytest.raises(EngineError, match="b is too large"):
                await lodging.ask("b")
        assert lodging.ready == ["a"]


async def test_what_is_loaded_all_the_same_gets_all_there_is() -> None:
    async with _lodging(20, {"a": 10, "b": 30}) as lodging:
        await lodging.ask("a")
        lodging["b"].start(UnfitPolicy.LOAD)
        assert await lodging.ask("b") == "b"
        assert lodging.ready == ["b"]


async def test_one_that_dies_while_it_is_waited_for_has_left() -> None:
    async with _lodging(10, {"a": 10, "b": 10}) as lodging:
        async with lodging["a"].answer(ENDLESS) as events:
            await anext(events)
            asked = asyncio.create_task(lodging.ask("b"))
            for _ in range(5):
                await anext(events)
            assert lodging["a"].worker_pid is not None
            os.kill(lodging["a"].worker_pid, signal.SIGTERM)
            with pytest.raises(EngineError, match="died"):
                await _drain(events)
        assert await asked == "b"
