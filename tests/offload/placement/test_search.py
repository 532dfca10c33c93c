"""Placements of random models on random machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.devices.machine import Device, DeviceKind, DeviceSpeed, Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import ModelProfile, PlannedModel, RunConfig
from offload.footprint.weights import Layer
from offload.placement import search
from offload.placement.search import curve, place, with_prompts
from offload.placement.shares import Placement, Share, allocate, decode_work, margin_bytes, n_at_once, prefill_work
from offload.speed.cost_model import TYPICAL_TURN, decode_s, expected_rates, prefill_s
from offload.speed.type_costs import GraphCost, ProductCost, TypeCost, TypeTable
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
PLENTY = 4096 * GIB
LLAMA_FIT_MARGIN = GIB  # what llama.cpp's fit leaves free on a device unless told otherwise
N_EXAMPLES = 150

SETTING = RunConfig(n_ctx=8192, n_cells=8192, kv_types=KvTypes())
RTX_3060 = MACHINES["RTX 3060 12 GB, 32 GB RAM"]


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    weight_bytes = draw(st.integers(1 << 20, 2 * GIB))
    movable_bytes = int(weight_bytes * draw(st.sampled_from([0.0, 0.5, 0.7, 0.95])))
    active = draw(st.sampled_from([1.0, 0.1]))
    movable_read = int(movable_bytes * active)
    cache_bytes = draw(st.integers(0, GIB))
    return Layer(
        weight_bytes=weight_bytes,
        read_bytes=weight_bytes - movable_bytes + movable_read,
        movable_bytes=movable_bytes,
        movable_read_bytes=movable_read,
        cache_bytes=cache_bytes,
        cache_read_bytes=cache_bytes // 16,
        operations=2 * weight_bytes,
        unpacking_bytes=weight_bytes * 0.5,
        movable_unpacking_bytes=movable_read * 0.5,
        attention_bytes=cache_bytes / 4,
    )


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    """Models of equal layers, as they are but for a few, and of wildly different ones."""
    n_layers = draw(st.integers(1, 100))
    kinds = draw(st.lists(layers(), min_size=1, max_size=4))
    output = replace(
        draw(layers()),
        movable_bytes=0,
        movable_read_bytes=0,
        movable_unpacking_bytes=0.0,
        cache_bytes=0,
        cache_read_bytes=0,
    )
    return ModelProfile(
        layers=(*(kinds[index % len(kinds)] for index in range(n_layers)), output),
        input_bytes=draw(st.integers(0, GIB)),
        tied_bytes=draw(st.sampled_from([0, 500 << 20])),
        compute_bytes=(compute_bytes := draw(st.integers(1 << 20, 2 * GIB))),
        inner_compute_bytes=compute_bytes // 2,
        unattending_bytes=compute_bytes // 3,
        host_bytes=150 << 20,
        has_experts=False,
        is_exact=True,
        run_config=SETTING,
    )


def gpus(kind: DeviceKind = DeviceKind.GPU, most: int = 4) -> st.SearchStrategy[tuple[Device, ...]]:
    sizes = st.integers(0, 200).map(lambda n: n * GIB // 2)
    one = st.tuples(sizes, st.sampled_from([100e9, 360e9, 936e9, 936e9, 3000e9]))
    return st.lists(one, max_size=most).map(
        lambda found: tuple(
            Device(name=f"GPU{i}", kind=kind, total_bytes=size, free_bytes=size, bytes_per_s=speed)
            for i, (size, speed) in enumerate(found)
        )
    )


def host(free_bytes: int, bytes_per_s: float = 60e9) -> Device:
    return Device(
        name="CPU", kind=DeviceKind.CPU, total_bytes=free_bytes, free_bytes=free_bytes, bytes_per_s=bytes_per_s
    )


HOSTS = st.builds(host, st.sampled_from([GIB, 16 * GIB, 64 * GIB, PLENTY]), st.sampled_from([20e9, 60e9, 400e9]))
MACHINES = st.builds(Machine, HOSTS, gpus() | gpus(DeviceKind.INTEGRATED))


def placed(profile: ModelProfile, machine: Machine) -> tuple[Placement | None, tuple[Share, ...]]:
    placement = place(profile, machine, expected_rates(machine))
    return placement, allocate(profile, machine, placement) if placement else ()


@pytest.mark.slow
@settings(max_examples=N_EXAMPLES)
@given(profiles(), MACHINES)
def test_no_device_gets_more_than_its_memory_less_the_margin(profile: ModelProfile, machine: Machine) -> None:
    _, shares = placed(profile, machine)
    for share in shares:
        if share.n_layers and not share.device.shares_host:
            assert share.n_bytes <= share.device.free_bytes - margin_bytes(share.device)
    on_host = sum(share.n_bytes for share in shares if share.device.shares_host)
    assert on_host <= machine.host.free_bytes - margin_bytes(machine.host) or not shares


@pytest.mark.slow
@settings(max_examples=N_EXAMPLES)
@given(profiles(), MACHINES)
def test_every_byte_is_placed_once_and_read_where_it_lies(profile: ModelProfile, machine: Machine) -> None:
    placement, shares = placed(profile, machine)
    if placement is None:
        return
    tied = profile.tied_bytes if placement.n_on_gpus else 0
    assert sum(share.weight_bytes for share in shares) == profile.weight_bytes + tied
    assert sum(share.cache_bytes for share in shares) == profile.cache_bytes
    assert sum(share.n_layers for share in shares) == len(profile.layers)
    rates = expected_rates(machine)
    assert decode_s(decode_work(shares, placement), rates) == pytest.approx(placement.token_s)
    reading_s = prefill_s(prefill_work(profile, shares, placement), rates, "CPU", n_at_once(profile))
    assert reading_s == pytest.approx(placement.prompt_s)
    assert placement.turn_s == pytest.approx(TYPICAL_TURN.seconds(placement.prompt_s, placement.token_s))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "granite-4.0-h-tiny"])
@pytest.mark.parametrize("card_gib", [0.5, 1, 2, 4, 6, 9])
@pytest.mark.parametrize("is_measured", [False, True])
def test_the_seconds_of_published_models_are_those_of_their_shares(
    name: str, card_gib: float, is_measured: bool
) -> None:
    """With the types of weights measured on both devices, of layers that are split, and of a cache on the processor."""
    header = header_of(name)
    model = PlannedModel(header, header.tensors).quantized(file_type_named("Q4_K_M"))
    cards = tuple(replace(gpu, free_bytes=int(card_gib * GIB)) for gpu in RTX_3060.gpus)
    tables = {"CPU": table(1e-11), "CUDA0": table(1e-13)} if is_measured else {}
    machine = Machine(RTX_3060.host, cards)
    rates = expected_rates(machine, tables)
    for is_fused in (True, False):
        profile = model.profile(replace(SETTING, n_outputs=200, is_fused=is_fused))
        placement = place(profile, machine, rates)
        assert placement is not None
        shares = allocate(profile, machine, placement)
        token_s = decode_s(decode_work(shares, placement), rates)
        assert is_measured or token_s == pytest.approx(placement.token_s)
        work = prefill_work(profile, shares, placement)
        assert prefill_s(work, rates, "CPU", n_at_once(profile)) == pytest.approx(placement.prompt_s)


def table(weight_s: float) -> TypeTable:
    """A device on which some types were measured, as the file has them and repacked."""
    cost = ProductCost(weight_s, 64 * weight_s)
    kinds = {name: TypeCost(cost, cost, cost, cost) for name in ("Q4_K", "Q4_K repacked")}
    return TypeTable(kinds, GraphCost(cost, cost, 2e-12, 2e-12, 2e-12, 1e-5))


def test_a_card_that_reads_slowly_computes_prompts_without_a_layer_where_its_link_is_worth_it() -> None:
    """One that multiplies fast. Where it has no room for a layer it has none for what prompts of all take either: the
    output's weights are fetched for a step of many logits."""
    header = header_of("llama-3.1-8b")
    profile = (
        PlannedModel(header, header.tensors)
        .quantized(file_type_named("Q4_K_M"))
        .profile(replace(SETTING, n_outputs=200))
    )
    card = replace(RTX_3060.gpus[0], free_bytes=2 * GIB, speed=DeviceSpeed(10e9, 10e12))
    machine = Machine(RTX_3060.host, (card,))
    rates = expected_rates(machine)
    found = place(profile, machine, rates)
    assert found is not None
    assert (found.n_on_gpus, found.prompt_gpu) == (0, "CUDA0")
    shares = allocate(profile, machine, found)
    assert 0 < shares[0].n_bytes == shares[0].compute_bytes <= card.free_bytes - margin_bytes(card)
    alone = place(profile, Machine(RTX_3060.host), expected_rates(Machine(RTX_3060.host)))
    assert alone is not None
    assert found.prompt_s < alone.prompt_s / 3
    slow = Machine(RTX_3060.host, (replace(card, link_bytes_per_s=1e7),))
    without = place(profile, slow, expected_rates(slow))
    assert without is not None
    assert without.prompt_gpu == ""


def test_a_gpu_of_another_machine_fetches_nothing() -> None:
    header = header_of("llama-3.1-8b")
    profile = PlannedModel(header, header.tensors).profile(SETTING)
    remote = replace(RTX_3060.gpus[0], free_bytes=4 * GIB, link_latency_s=1e-4)
    machine = Machine(RTX_3060.host, (remote,))
    found = place(profile, machine, expected_rates(machine))
    assert found is not None
    assert found.n_on_gpus > 0
    assert found.prompt_gpu == ""


@pytest.mark.slow
@settings(max_examples=N_EXAMPLES)
@given(profiles(), MACHINES, st.integers(0, 3), st.integers(1, 40))
def test_more_memory_is_never_predicted_slower(
    profile: ModelProfile, machine: Machine, which: int, more_gib: int
) -> None:
    before, _ = placed(profile, machine)
    grown = [
        replace(gpu, free_bytes=gpu.free_bytes + more_gib * GIB) if i == which else gpu
        for i, gpu in enumerate(machine.gpus)
    ]
    richer_host = replace(machine.host, free_bytes=machine.host.free_bytes + more_gib * GIB)
    for richer in (Machine(machine.host, tuple(grown)), Machine(richer_host, machine.gpus)):
        after, _ = placed(profile, richer)
        assert before is None or (after is not None and after.turn_s <= before.turn_s * (1 + 1e-9))


def fit_of_llama_cpp(profile: ModelProfile, gpus: Sequence[Device]) -> tuple[dict[str, tuple[int, int]], int]:
    """What llama.cpp's `--fit` decides, restated (source: common/fit.cpp as vendored in llama-cpp-python 0.3.36).

    From the last device to the first, the last layers first, each with a margin of one GiB; of a model with experts the
    layers without them come first, and as many as then still fit get them back, again from the last on.
    Returns the layers [start, end) by device, and the first layer that is whole.
    """

    def fill(n_split: int) -> dict[str, tuple[int, int]]:
        ranges, end = {}, len(profile.layers)
        for gpu in reversed(gpus):
            start, room = end, gpu.free_bytes - LLAMA_FIT_MARGIN - profile.compute_bytes
            room -= profile.tied_bytes if end == len(profile.layers) else 0
            while start and (size := bytes_of(start - 1, n_split)) <= room:
                start, room = start - 1, room - size
            ranges[gpu.name] = (start, end)
            end = start
        return ranges

    def bytes_of(index: int, n_split: int) -> int:
        layer = profile.layers[index]
        return layer.weight_bytes + layer.cache_bytes - (layer.movable_bytes if index < n_split else 0)

    if not profile.has_experts:
        return fill(0), 0
    n_layers = len(profile.layers)
    start = min((begun for begun, _ in fill(n_layers).values()), default=n_layers)
    whole = next(
        n for n in range(n_layers + 1) if min((begun for begun, _ in fill(n).values()), default=n_layers) == start
    )
    return fill(whole), whole


@pytest.mark.slow
@settings(max_examples=N_EXAMPLES)
@given(profiles(), gpus(most=2), st.booleans())
def test_a_placement_is_no_slower_than_that_of_llama_cpp(
    profile: ModelProfile, found: tuple[Device, ...], has_experts: bool
) -> None:
    profile = replace(profile, has_experts=has_experts)
    machine = Machine(host(PLENTY), found)
    rates = expected_rates(machine)
    ours, _ = placed(profile, machine)
    ranges, n_split = fit_of_llama_cpp(profile, found)
    theirs = as_placement(profile, ranges, n_split)
    assert ours is not None
    assert ours.turn_s <= with_prompts(profile, machine, rates, theirs).turn_s * (1 + 1e-9)


def as_placement(profile: ModelProfile, ranges: dict[str, tuple[int, int]], n_split: int) -> Placement:
    counts = tuple(end - start for start, end in ranges.values())
    n_layers = len(profile.layers)
    on_gpus = range(n_layers - sum(counts), n_layers)
    n_devices = sum(count > 0 for count in counts) + (len(on_gpus) < n_layers)
    n_moved = sum(profile.layers[index].movable_bytes > 0 for index in on_gpus if index < n_split)
    return Placement(
        gpus=tuple(ranges),
        gpu_layers=counts,
        n_split=n_split,
        n_crossings=n_devices - 1 + 2 * n_moved,
        token_s=0.0,
    )


def test_a_plan_for_a_large_model_on_four_gpus_tries_few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order takes milliseconds, for all numbers of layers at once."""
    layer = Layer(weight_bytes=GIB, read_bytes=GIB // 8, movable_bytes=GIB * 9 // 10, movable_read_bytes=GIB // 10)
    profile = ModelProfile(
        layers=(layer,) * 127,
        input_bytes=GIB,
        tied_bytes=0,
        compute_bytes=GIB,
        inner_compute_bytes=GIB,
        unattending_bytes=GIB,
        host_bytes=GIB,
        has_experts=True,
        is_exact=True,
        run_config=SETTING,
    )
    cards = [
        Device(name=f"GPU{i}", kind=DeviceKind.GPU, total_bytes=24 * GIB, free_bytes=24 * GIB, bytes_per_s=9e11)
        for i in range(4)
    ]
    machine = Machine(host(PLENTY), tuple(cards))
    rates = expected_rates(machine)
    tried: list[Sequence[Device]] = []
    best = search._best

    def counted(*arguments: Any) -> Placement | None:
        tried.append(arguments[-1])
        return best(*arguments)

    monkeypatch.setattr(search, "_best", counted)
    place(profile, machine, rates)
    assert len(tried) <= 10


def test_the_curve_rises_with_every_layer_on_a_gpu() -> None:
    profile = ModelProfile(
        layers=(Layer(weight_bytes=GIB, read_bytes=GIB),) * 33,
        input_bytes=0,
        tied_bytes=0,
        compute_bytes=1,
        inner_compute_bytes=1,
        unattending_bytes=1,
        host_bytes=1,
        has_experts=False,
        is_exact=True,
        run_config=SETTING,
    )
    card = Device(name="GPU0", kind=DeviceKind.GPU, total_bytes=GIB, free_bytes=GIB, bytes_per_s=900e9)
    machine = Machine(host(PLENTY), (card,))
    rates = expected_rates(machine)
    times_s = curve(profile, machine, rates)
    assert len(times_s) == 34
    assert list(times_s) == sorted(times_s, reverse=True)
    slower = rates.seconds_per_byte["CPU"] / rates.seconds_per_byte["GPU0"]
    assert times_s[0] / times_s[-1] == pytest.approx(slower, rel=0.02)
