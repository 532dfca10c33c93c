from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.messages import EngineConfig, UnfitPolicy
from app.engine.request import Request
from app.service.pool.engine_client import EngineClient, EngineOwner
from app.service.pool.load_queue import LoadQueue, plan_eviction
from app.service.pool.memory import LoadedModel, ModelDemand, machine_without
from app.service.pool.worker_process import StartWorker, WorkerProcess
from offload.devices.machine import Device, DeviceKind, Machine
from quantizer.system.errors import EngineError
from quantizer.system.process import python_command
from tests.app.service.pool.memory_fake import FakeMemory, host_with
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


SIZES = st.integers(1, 100)
GPU = "CUDA0"


def _model(name: str, n_bytes: int, last_used_s: float = 0.0, *, is_busy: bool = False) -> LoadedModel:
    return LoadedModel(path=Path(name), held_bytes={"CPU": n_bytes}, last_used_s=last_used_s, is_busy=is_busy)


def _all_of(n_bytes: int) -> ModelDemand:
    return lambda machine: float(machine.host.free_bytes >= n_bytes)


@st.composite
def _models(draw: st.DrawFn) -> list[LoadedModel]:
    sizes = draw(st.lists(SIZES, max_size=6))
    times_s = draw(st.permutations(range(len(sizes))))
    busy = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return [
        _model(str(index), size, float(time_s), is_busy=is_busy)
        for index, (size, time_s, is_busy) in enumerate(zip(sizes, times_s, busy, strict=True))
    ]


@given(_models(), SIZES, st.integers(-50, 100))
def test_the_model_fits_beside_those_that_stay(loaded: list[LoadedModel], wanted: int, free: int) -> None:
    machine = host_with(free)
    leaving = plan_eviction(_all_of(wanted), loaded, machine)
    assert leaving is None or machine_without(machine, leaving).host.free_bytes >= wanted


@given(_models(), SIZES, st.integers(-50, 100))
def test_busy_models_leave_last_and_only_if_idle_ones_do_not_suffice(
    loaded: list[LoadedModel], wanted: int, free: int
) -> None:
    leaving = plan_eviction(_all_of(wanted), loaded, host_with(free)) or []
    are_busy = [model.is_busy for model in leaving]
    assert are_busy == sorted(are_busy)
    idle = [model for model in loaded if not model.is_busy]
    if machine_without(host_with(free), idle).host.free_bytes >= wanted:
        assert not any(are_busy)


@given(_models(), SIZES, st.integers(-50, 100))
def test_none_is_unloaded_without_need(loaded: list[LoadedModel], wanted: int, free: int) -> None:
    machine = host_with(free)
    leaving = plan_eviction(_all_of(wanted), loaded, machine) or []
    for spared in leaving:
        others = [model for model in leaving if model is not spared]
        assert machine_without(machine, others).host.free_bytes < wanted


@given(_models(), SIZES, st.integers(-50, 100))
def test_none_is_unloaded_for_a_model_that_would_not_run_alone(
    loaded: list[LoadedModel], wanted: int, free: int
) -> None:
    machine = host_with(free)
    fits_alone = machine_without(machine, loaded).host.free_bytes >= wanted
    assert (plan_eviction(_all_of(wanted), loaded, machine) is None) is not fits_alone


@given(st.lists(st.just(10), min_size=1, max_size=6), st.integers(1, 60))
def test_of_equal_models_the_least_recently_used_are_unloaded_first(sizes: list[int], wanted: int) -> None:
    loaded = [_model(str(index), size, float(index)) for index, size in enumerate(sizes)]
    n_needed = -(-wanted // 10)
    assert plan_eviction(_all_of(wanted), loaded, host_with(0)) in (None, loaded[:n_needed])


def test_a_small_model_stays_where_a_large_one_has_to_be_unloaded_anyway() -> None:
    loaded = [_model("small", 5, 1.0), _model("large", 50, 2.0)]
    assert plan_eviction(_all_of(40), loaded, host_with(0)) == [loaded[1]]


def _machine(host_bytes: int, gpu_bytes: int, kind: DeviceKind = DeviceKind.GPU) -> Machine:
    gpu = Device(name=GPU, kind=kind, total_bytes=gpu_bytes, free_bytes=gpu_bytes)
    return Machine(host_with(host_bytes).host, (gpu,))


def _faster_with_layers(machine: Machine) -> float:
    """A model of 10 layers, each of a byte: ten times as fast on the GPU."""
    n_on_gpu = min(10, machine.gpus[0].free_bytes)
    return 10 / (n_on_gpu + 10 * (10 - n_on_gpu)) if machine.host.free_bytes >= 10 - n_on_gpu else 0.0


def test_a_model_that_would_be_slow_beside_another_has_the_gpu_to_itself() -> None:
    on_gpu = LoadedModel(path=Path("a"), held_bytes={GPU: 8, "CPU": 1}, last_used_s=0.0)
    on_host = LoadedModel(path=Path("b"), held_bytes={"CPU": 5}, last_used_s=1.0)
    assert plan_eviction(_faster_with_layers, [on_gpu, on_host], _machine(100, 4)) == [on_gpu]
    assert plan_eviction(_faster_with_layers, [on_gpu, on_host], _machine(100, 10)) == []


def test_shared_memory_of_a_gpu_becomes_free_to_both() -> None:
    on_gpu = LoadedModel(path=Path("a"), held_bytes={GPU: 8, "CPU": 1}, last_used_s=0.0)
    freed = machine_without(_machine(3, 2, DeviceKind.INTEGRATED), [on_gpu])
    assert (freed.host.free_bytes, freed.gpus[0].free_bytes) == (12, 11)
    apart = machine_without(_machine(3, 2), [replace(on_gpu, path=Path("b"))])
    assert (apart.host.free_bytes, apart.gpus[0].free_bytes) == (4, 10)
