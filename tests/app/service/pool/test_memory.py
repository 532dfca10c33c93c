from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from bisect import bisect_left
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
from app.library.local.resolve import GUIDE, resolve
from app.protocol.errors import UnfitError
from app.service.pool.engine_client import EngineClient, EngineOwner
from app.service.pool.memory import (
    LoadedModel,
    LoadQueue,
    MachineMemory,
    ModelDemand,
    machine_without,
    plan_eviction,
    private_bytes,
    resident_bytes,
)
from app.service.pool.worker_process import StartWorker, WorkerProcess
from app.settings.settings import Settings
from offload.devices.machine import Device, DeviceKind, Machine
from offload.placement.shares import margin_bytes
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.process import python_command
from tests.app.client.scripted_client import PLAN
from tests.app.service.pool.memory_fake import FakeMemory, host_with
from tests.app.thread_worker import thread_worker
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_projectors import tiny_projector

GIB = 1 << 30
MORE_THAN_ANY = 1 << 60
CONFIG = EngineConfig(n_sequences=8)


def _memory(tmp_path: Path, max_memory: str = "") -> MachineMemory:
    return MachineMemory(Settings(cache_dir=tmp_path, gpu=False, max_memory=max_memory))


def _loaded(n_bytes: int, pid: int | None = None) -> LoadedModel:
    return LoadedModel(path=Path("x.gguf"), worker_pid=pid, held_bytes={"CPU": n_bytes})


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    return resolve(GUIDE, Settings(data_dir=tmp_path)).path


def test_memory_that_a_plan_reserves_is_not_free_though_the_system_counts_it(tmp_path: Path) -> None:
    free = _memory(tmp_path).machine((_loaded(MORE_THAN_ANY),)).host.free_bytes
    assert free == pytest.approx(-MORE_THAN_ANY, rel=0.01)


def test_memory_that_a_worker_has_allocated_is_not_counted_twice(tmp_path: Path) -> None:
    free = _memory(tmp_path).machine((_loaded(1000, os.getpid()),)).host.free_bytes
    assert free > 0


def test_a_limit_is_for_all_models_together(tmp_path: Path) -> None:
    memory = _memory(tmp_path, "64MiB")
    machine = memory.machine((_loaded(1000),))
    assert memory.is_limited
    assert machine.host.free_bytes - margin_bytes(machine.host) == (64 << 20) - 1000
    assert not _memory(tmp_path).is_limited


@pytest.mark.parametrize("limit", ["much", "0", "-1GiB"])
def test_an_invalid_limit_is_refused(tmp_path: Path, limit: str) -> None:
    with pytest.raises(UsageError):
        _memory(tmp_path, limit)


def test_the_plan_has_the_bytes_of_each_device(tmp_path: Path, guide: Path) -> None:
    (cpu,) = PLAN.devices
    gpu = replace(cpu, name="CUDA0", weights_bytes=5, kv_bytes=3, compute_bytes=1)
    plan = replace(PLAN, devices=(gpu, replace(cpu, weights_bytes=2, kv_bytes=0, compute_bytes=0, extras_bytes=7)))
    memory = _memory(tmp_path)
    assert memory.held_bytes(guide, plan) == {"CUDA0": 9, "CPU": 9}
    assert memory.held_bytes(guide, None) == {"CPU": guide.stat().st_size}
    assert memory.held_bytes(guide, replace(PLAN, devices=())) == {"CPU": guide.stat().st_size}


def test_a_model_runs_only_where_there_is_memory_for_it(tmp_path: Path, guide: Path) -> None:
    demand = _memory(tmp_path).demand(guide, CONFIG)
    assert demand(host_with(4 * GIB)) > 0
    assert demand(host_with(0)) == demand(host_with(-GIB)) == 0


@pytest.mark.slow
def test_a_reload_with_a_smaller_kv_cache_needs_less_memory(tmp_path: Path, guide: Path) -> None:
    def least_pages(kv_type: str) -> int:
        demand = _memory(tmp_path).demand(guide, replace(CONFIG, kv_type=kv_type))
        return bisect_left(range(0, 4 * GIB, 4096), True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)

    assert least_pages("f16") < least_pages("f32")


def test_layers_that_the_user_chose_for_a_gpu_need_its_memory(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path)
    gpu = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=4 * GIB, free_bytes=4 * GIB)
    free = replace(host_with(8 * GIB), gpus=(gpu,))
    full = replace(free, gpus=(replace(gpu, free_bytes=0),))
    chosen = replace(CONFIG, gpu_layers={"CUDA0": 1})
    assert memory.demand(guide, CONFIG)(full) > 0
    assert memory.demand(guide, chosen)(free) > 0
    assert memory.demand(guide, chosen)(full) == 0


def test_layers_for_a_gpu_that_is_not_here_are_refused(tmp_path: Path, guide: Path) -> None:
    demand = _memory(tmp_path).demand(guide, replace(CONFIG, gpu_layers={"CUDA0": 1}))
    with pytest.raises(UsageError, match="no GPU called CUDA0"):
        demand(host_with(4 * GIB))


def test_too_large_a_model_is_refused_by_the_planner_unless_the_user_confirms(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path)
    with pytest.raises(EngineError, match="it needs"):
        memory.check(guide, CONFIG, host_with(1))
    with pytest.raises(UnfitError):
        memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.ASK), host_with(1))
    memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.LOAD), host_with(1))
    memory.check(guide, CONFIG, host_with(4 * GIB))


def test_a_model_beyond_max_memory_is_refused_with_both_numbers(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path, "200MiB")
    with pytest.raises(EngineError, match=r"needs \d+ MiB, and models may take 200 MiB together"):
        memory.check(guide, CONFIG, memory.machine(()))
    memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.LOAD), memory.machine(()))


@pytest.mark.slow
def test_a_head_beside_a_model_is_counted_and_gives_way_where_memory_is_short(tmp_path: Path) -> None:
    model = drafted_model(tmp_path / "m.gguf")
    draft_head(tmp_path / "dspark-m.gguf", "dspark")
    memory, finding = _memory(tmp_path), replace(CONFIG, finds_head=True)

    def is_accepted(config: EngineConfig, n_bytes: int) -> bool:
        try:
            memory.check(model, config, host_with(n_bytes))
        except EngineError:
            return False
        return True

    def least_pages(config: EngineConfig) -> tuple[int, int]:
        demand, sizes = memory.demand(model, config), range(0, 4 * GIB, 4096)
        wanted = bisect_left(sizes, True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)
        return wanted, bisect_left(sizes, True, key=lambda n_bytes: is_accepted(config, n_bytes))

    plain, named = least_pages(CONFIG), least_pages(replace(CONFIG, draft_path=str(tmp_path / "dspark-m.gguf")))
    assert all(one < other for one, other in zip(plain, named, strict=True))
    assert least_pages(finding) == plain


@pytest.mark.slow
def test_a_projector_that_was_found_is_counted_and_gives_way_where_memory_is_short(tmp_path: Path) -> None:
    model, projector = drafted_model(tmp_path / "m.gguf"), tiny_projector(tmp_path / "mmproj-m.gguf")
    memory = _memory(tmp_path)

    def least_pages(config: EngineConfig) -> int:
        demand = memory.demand(model, config)
        return bisect_left(range(0, 4 * GIB, 4096), True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)

    found = replace(CONFIG, projector_path=str(projector))
    chosen = replace(found, has_chosen_projector=True)
    assert least_pages(CONFIG) == least_pages(found) < least_pages(chosen)


def test_a_projector_that_was_found_and_does_not_belong_counts_nothing(tmp_path: Path) -> None:
    model = drafted_model(tmp_path / "m.gguf")
    wrong = tiny_projector(tmp_path / "mmproj-m.gguf", n_embd=96)
    config = replace(CONFIG, projector_path=str(wrong))
    assert _memory(tmp_path).demand(model, config)(host_with(4 * GIB)) > 0
    with pytest.raises(ModelFileError, match="its embeddings are 96 wide"):
        _memory(tmp_path).demand(model, replace(config, has_chosen_projector=True))


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        _memory(tmp_path).demand(tmp_path / "no.gguf", CONFIG)


def test_private_memory_excludes_mapped_files() -> None:
    assert 0 < private_bytes(os.getpid()) <= resident_bytes(os.getpid())


def test_none_and_an_ended_process_hold_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert [of(pid) for of in (private_bytes, resident_bytes) for pid in (None, ended.pid)] == [0] * 4


THREADS = thread_worker(step_ms=2)
ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)


class Owner(EngineOwner):
    """Loads engines one after another."""

    def __init__(self, queue: LoadQueue) -> None:
        self.admit = queue.admit  # type: ignore[method-assign]
        self.on_idle = self.on_worker_ended = queue.look_again  # type: ignore[method-assign]


class Engines:
    """Engines called a, b, c … over the fake backend, in a memory that a script describes."""

    def __init__(self, total_bytes: int, sizes: Mapping[str, int], start_worker: StartWorker) -> None:
        self.memory = FakeMemory(total_bytes, sizes)
        queue = self.queue = LoadQueue(self.memory, lambda: self.engines.values())
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
        async with asyncio.timeout(120):
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


async def test_what_a_load_would_unload_is_known_without_loading_it() -> None:
    async with _engines(30, {"a": 10, "b": 10, "c": 10, "d": 20, "e": 40}) as engines:
        for name in "ab":
            await engines.ask(name)

        async def evicted_for(name: str) -> list[str] | None:
            leaving = await engines.queue.evicted_for(engines[name].model_path, engines[name].config)
            return None if leaving is None else [engine.model_path.stem for engine in leaving]

        assert [await evicted_for(name) for name in "acde"] == [[], [], ["a"], None]
        assert engines.ready == ["a", "b"], "nothing was loaded or unloaded"


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


@pytest.mark.parametrize("is_wanted", [False, True], ids=["by a request", "by the app, and loads again"])
async def test_a_worker_that_dies_while_it_is_waited_for_counts_as_unloaded(is_wanted: bool) -> None:
    command = python_command("app.engine.worker", "--fake", "--fake-step-ms", "2")
    async with _engines(10, {"a": 10, "b": 10}, partial(WorkerProcess.start, command)) as engines:
        if is_wanted:
            engines["a"].start()
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
