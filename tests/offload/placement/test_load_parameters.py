from __future__ import annotations

import re
from dataclasses import replace

import pytest

from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import ModelProfile, PlannedModel, RunConfig
from offload.placement.load_parameters import (
    DeviceUsage,
    ExcessUsage,
    LoadMode,
    excess_usage,
    load_parameters,
    missing_gpus,
    partial_gpus,
    with_reserved,
)
from offload.placement.shares import Placement, Share
from tests.offload.model_outlines import header_of

SETTING = RunConfig(n_ctx=4096, n_cells=4096, kv_types=KvTypes())
WHOLE = Placement(gpus=("A", "B", "C"), gpu_layers=(20, 0, 5), n_split=0, n_crossings=2, token_s=1.0, prompt_gpu="C")


def machine(free_gib: float) -> Machine:
    free_bytes = int(free_gib * (1 << 30))
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=free_bytes, free_bytes=free_bytes)
    cards = tuple(replace(host, name=name, kind=DeviceKind.GPU) for name in ("A", "B", "C"))
    return Machine(host, cards)


ROOMY = machine(64)


def profile(name: str) -> ModelProfile:
    header = header_of(name)
    return PlannedModel(header, header.tensors).profile(SETTING)


def test_the_device_of_the_last_layers_comes_last_and_an_idle_one_not_at_all() -> None:
    parameters = load_parameters(profile("llama-3.1-8b"), ROOMY, WHOLE)
    assert parameters.n_gpu_layers == 25
    assert parameters.devices == ("C", "A")
    assert parameters.tensor_split == (5, 20)
    assert parameters.host_pattern == ""


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_the_pattern_matches_exactly_the_bytes_that_stay_behind(name: str) -> None:
    model = profile(name)
    placement = replace(WHOLE, n_split=len(model.layers) - 25 + 3)
    pattern = re.compile(load_parameters(model, ROOMY, placement).host_pattern)
    kept = sum(tensor.n_bytes for tensor in header_of(name).tensors if pattern.search(tensor.name))
    assert kept == 3 * model.layers[0].movable_bytes


def test_layers_that_are_not_on_a_gpu_need_no_pattern() -> None:
    found = load_parameters(profile("qwen3-30b-a3b"), ROOMY, replace(WHOLE, n_split=10))
    assert found.host_pattern == ""


def test_a_cache_on_the_host_and_the_setting_are_passed_on() -> None:
    placement = replace(WHOLE, has_cache_on_host=True)
    model = replace(profile("llama-3.1-8b"), run_config=replace(SETTING, n_ubatch=128, is_fused=False))
    found = load_parameters(model, ROOMY, placement)
    assert (found.offload_kqv, found.n_ubatch, found.flash_attention) == (False, 128, False)
    assert load_parameters(model, ROOMY, WHOLE).offload_kqv


def test_a_processor_without_a_layer_needs_one_thread_and_else_what_was_measured() -> None:
    model = profile("llama-3.1-8b")
    whole = replace(WHOLE, gpu_layers=(33, 0, 0))
    assert load_parameters(model, ROOMY, whole).n_threads == 1
    for other in (WHOLE, replace(whole, n_split=2), replace(whole, has_cache_on_host=True)):
        assert load_parameters(model, ROOMY, other).n_threads == 0


def test_weights_are_mapped_unless_gpus_fetch_them_and_locked_where_memory_is_short() -> None:
    model = profile("llama-3.1-8b")
    on_host = replace(WHOLE, gpu_layers=(0, 0, 0), prompt_gpu="")
    assert load_parameters(model, ROOMY, on_host).load_mode is LoadMode.AUTO
    assert load_parameters(model, ROOMY, WHOLE).load_mode is LoadMode.NONE
    remote = tuple(replace(gpu, link_latency_s=1e-4) for gpu in ROOMY.gpus)
    unlent = replace(WHOLE, prompt_gpu="")
    assert load_parameters(model, Machine(ROOMY.host, remote), unlent).load_mode is LoadMode.AUTO
    shared = tuple(replace(gpu, kind=DeviceKind.INTEGRATED) for gpu in ROOMY.gpus)
    assert load_parameters(model, Machine(ROOMY.host, shared), WHOLE).load_mode is LoadMode.AUTO
    short = machine(model.total_bytes / (1 << 30) + 0.75)
    assert load_parameters(model, short, on_host).load_mode is LoadMode.MMAP_MLOCK
    assert load_parameters(model, short, replace(WHOLE, gpu_layers=(33, 0, 0))).load_mode is LoadMode.AUTO
    assert load_parameters(model, short, replace(WHOLE, n_split=20)).load_mode is LoadMode.NONE


def test_a_gpu_that_only_computes_prompts_is_listed_without_layers() -> None:
    alone = replace(WHOLE, gpus=("B",), gpu_layers=(0,), prompt_gpu="B")
    found = load_parameters(profile("llama-3.1-8b"), ROOMY, alone)
    assert (found.devices, found.tensor_split, found.n_gpu_layers, found.op_offload) == (("B",), (0,), 0, True)
    assert found.load_mode is LoadMode.NONE, "from the pages of a file it would fetch half as fast"
    assert found.n_threads == 0
    assert found.fetches_weights


def test_prompts_stay_with_the_processor_where_it_computes_them_faster() -> None:
    model = profile("llama-3.1-8b")
    assert load_parameters(model, ROOMY, WHOLE).op_offload
    assert not load_parameters(model, ROOMY, replace(WHOLE, prompt_gpu="")).op_offload
    whole = replace(WHOLE, gpu_layers=(33, 0, 0), prompt_gpu="")
    everything = load_parameters(model, ROOMY, whole)
    assert (everything.op_offload, everything.fetches_weights) == (True, False), "nothing is left to fetch"


CARD = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=1000, free_bytes=900)
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=9000, free_bytes=8000)


def share(device: Device, n_layers: int = 3) -> Share:
    return Share(
        device=device,
        n_layers=n_layers,
        weight_bytes=100,
        cache_bytes=50,
        compute_bytes=20,
        host_bytes=0,
        read_bytes=100,
        operations=0.0,
        work_bytes=0.0,
        attention_bytes=0.0,
        beside_bytes=0,
    )


SHARES = (share(CARD), share(HOST))
AS_PLANNED = {"CUDA0": DeviceUsage(100, 50, 20), "CPU": DeviceUsage(100, 50, 20)}


def test_a_load_as_planned_leaves_nothing_to_learn() -> None:
    assert excess_usage(SHARES, AS_PLANNED) == ExcessUsage(0, 0)


def test_excess_usage_of_a_device_is_reserved_in_the_next_plan() -> None:
    held = {"CUDA0": DeviceUsage(100, 50, 27), "CPU": DeviceUsage(100, 55, 20)}
    surplus = excess_usage(SHARES, held)
    assert surplus == ExcessUsage(gpu_bytes=7, host_bytes=5)
    machine = with_reserved(Machine(HOST, (CARD,)), surplus)
    assert (machine.gpus[0].free_bytes, machine.host.free_bytes) == (893, 7995)


def test_less_than_planned_is_no_surplus_and_a_whole_mapped_file_is_none_either() -> None:
    assert excess_usage(SHARES, {"CUDA0": DeviceUsage(100, 50, 1), "CPU": DeviceUsage(100_000, 50, 20)}) == ExcessUsage(
        0, 0
    )


def test_a_gpu_without_its_weights_is_missed() -> None:
    passed_over = AS_PLANNED | {"CUDA0": DeviceUsage(0, 0, 20)}
    assert missing_gpus(SHARES, passed_over) == ("CUDA0",)
    assert missing_gpus(SHARES, AS_PLANNED) == ()
    assert missing_gpus((replace(SHARES[0], n_layers=0), SHARES[1]), passed_over) == ()


@pytest.mark.parametrize(("n_bytes", "missing", "partial"), [(0, 1, 0), (30, 0, 1), (97, 0, 0)])
def test_a_gpu_that_holds_some_of_its_weights_is_not_missed(n_bytes: int, missing: int, partial: int) -> None:
    held = AS_PLANNED | {"CUDA0": DeviceUsage(n_bytes, 50, 20)}
    assert missing_gpus(SHARES, held) == ("CUDA0",) * missing
    assert partial_gpus(SHARES, held) == ("CUDA0",) * partial
