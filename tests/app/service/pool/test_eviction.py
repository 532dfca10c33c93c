from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.service.pool.eviction import Demand, EvictionPlan, Resident, plan_eviction, without
from app.service.pool.memory_fake import host_with
from offload.devices.machine import Device, DeviceKind, Machine

SIZES = st.integers(1, 100)
GPU = "CUDA0"


def _resident(name: str, n_bytes: int, last_used_s: float = 0.0, *, is_busy: bool = False) -> Resident:
    return Resident(name=name, held_bytes={"CPU": n_bytes}, last_used_s=last_used_s, is_busy=is_busy)


def _all_of(n_bytes: int) -> Demand:
    return lambda machine: float(machine.host.free_bytes >= n_bytes)


@st.composite
def _residents(draw: st.DrawFn) -> list[Resident]:
    sizes = draw(st.lists(SIZES, max_size=6))
    times_s = draw(st.permutations(range(len(sizes))))
    busy = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return [
        _resident(str(index), size, float(time_s), is_busy=is_busy)
        for index, (size, time_s, is_busy) in enumerate(zip(sizes, times_s, busy, strict=True))
    ]


def _left(loaded: list[Resident], room: EvictionPlan) -> list[Resident]:
    return [resident for resident in loaded if resident.name not in {*room.unload, *room.wait_for}]


@given(_residents(), SIZES, st.integers(-50, 100))
def test_what_is_wanted_fits_beside_those_that_stay(loaded: list[Resident], wanted: int, free: int) -> None:
    machine = host_with(free)
    room = plan_eviction(_all_of(wanted), loaded, machine)
    leaving = [resident for resident in loaded if resident not in _left(loaded, room)]
    assert room.is_hopeless or without(machine, leaving).host.free_bytes >= wanted


@given(_residents(), SIZES, st.integers(-50, 100))
def test_none_at_work_is_unloaded_and_none_is_waited_for_while_idle_ones_suffice(
    loaded: list[Resident], wanted: int, free: int
) -> None:
    busy = {resident.name for resident in loaded if resident.is_busy}
    room = plan_eviction(_all_of(wanted), loaded, host_with(free))
    assert not busy & {*room.unload}
    assert {*room.wait_for} <= busy
    idle = [resident for resident in loaded if not resident.is_busy]
    if without(host_with(free), idle).host.free_bytes >= wanted:
        assert not room.wait_for


@given(_residents(), SIZES, st.integers(-50, 100))
def test_nobody_leaves_without_need(loaded: list[Resident], wanted: int, free: int) -> None:
    machine = host_with(free)
    room = plan_eviction(_all_of(wanted), loaded, machine)
    leaving = [resident for resident in loaded if resident not in _left(loaded, room)]
    for spared in leaving:
        others = [resident for resident in leaving if resident is not spared]
        assert without(machine, others).host.free_bytes < wanted


@given(_residents(), SIZES, st.integers(-50, 100))
def test_nobody_leaves_for_what_would_not_run_alone(loaded: list[Resident], wanted: int, free: int) -> None:
    machine = host_with(free)
    fits_alone = without(machine, loaded).host.free_bytes >= wanted
    room = plan_eviction(_all_of(wanted), loaded, machine)
    assert room.is_hopeless is not fits_alone
    if room.is_hopeless:
        assert room == EvictionPlan(is_hopeless=True)


@given(st.lists(st.just(10), min_size=1, max_size=6), st.integers(1, 60))
def test_of_equals_those_used_least_leave_first(sizes: list[int], wanted: int) -> None:
    loaded = [_resident(str(index), size, float(index)) for index, size in enumerate(sizes)]
    room = plan_eviction(_all_of(wanted), loaded, host_with(0))
    n_needed = -(-wanted // 10)
    assert room.is_hopeless or room.unload == tuple(str(index) for index in range(n_needed))


def test_a_small_one_that_frees_too_little_stays_when_a_large_one_has_to_leave() -> None:
    loaded = [_resident("small", 5, 1.0), _resident("large", 50, 2.0)]
    assert plan_eviction(_all_of(40), loaded, host_with(0)).unload == ("large",)


def _machine(host_bytes: int, gpu_bytes: int, kind: DeviceKind = DeviceKind.GPU) -> Machine:
    gpu = Device(name=GPU, kind=kind, total_bytes=gpu_bytes, free_bytes=gpu_bytes)
    return Machine(host_with(host_bytes).host, (gpu,))


def _faster_with_layers(machine: Machine) -> float:
    """A model of 10 layers, each of a byte: ten times as fast on the GPU."""
    n_on_gpu = min(10, machine.gpus[0].free_bytes)
    return 10 / (n_on_gpu + 10 * (10 - n_on_gpu)) if machine.host.free_bytes >= 10 - n_on_gpu else 0.0


def test_a_model_that_would_be_slow_beside_another_has_the_gpu_to_itself() -> None:
    on_gpu = Resident(name="a", held_bytes={GPU: 8, "CPU": 1}, last_used_s=0.0)
    on_host = Resident(name="b", held_bytes={"CPU": 5}, last_used_s=1.0)
    assert plan_eviction(_faster_with_layers, [on_gpu, on_host], _machine(100, 4)).unload == ("a",)
    assert plan_eviction(_faster_with_layers, [on_gpu, on_host], _machine(100, 10)).unload == ()


def test_what_a_gpu_holds_of_the_processors_memory_is_free_to_both_again() -> None:
    on_gpu = Resident(name="a", held_bytes={GPU: 8, "CPU": 1}, last_used_s=0.0)
    freed = without(_machine(3, 2, DeviceKind.INTEGRATED), [on_gpu])
    assert (freed.host.free_bytes, freed.gpus[0].free_bytes) == (12, 11)
    apart = without(_machine(3, 2), [replace(on_gpu, name="b")])
    assert (apart.host.free_bytes, apart.gpus[0].free_bytes) == (4, 10)
