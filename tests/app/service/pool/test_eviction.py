from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.service.pool.load_queue import plan_eviction
from app.service.pool.memory import LoadedModel, ModelDemand, machine_without
from offload.devices.machine import Device, DeviceKind, Machine
from tests.app.service.pool.memory_fake import host_with

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
