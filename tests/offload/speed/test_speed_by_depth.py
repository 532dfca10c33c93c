from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import assess
from offload.placement.shares import ALL_ON_HOST, allocate, prefill_work
from offload.plan import best_assessment, faster_quantization, predict
from offload.speed.cost_model import expected_rates, prefill_s
from offload.speed.rate_fitting import Run, fit_rates
from quantizer.gguf.tensor_types import FILE_TYPES
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import OUTLINES, header_of

HEADER = header_of("llama-3.1-8b")
MODEL = PlannedModel(HEADER, tuple(HEADER.tensors))
QUESTION = RunConfig(kv_types=KvTypes(), is_fused=False)
MACHINE = MACHINES["processor only, 32 GB"]
RATES = expected_rates(MACHINE)


def test_an_answer_is_slower_the_deeper_it_stands() -> None:
    found = predict(MODEL, QUESTION, MACHINE, RATES, (0, 512, 1800))
    speeds = list(found.decode_tps.values())
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) == 3
    assert found.prefill_tps is not None
    assert found.uncertainty == RATES.uncertainty


def test_memory_of_unknown_speed_has_no_prediction() -> None:
    unknown = Machine(replace(MACHINE.host, bytes_per_s=None))
    found = predict(MODEL, QUESTION, unknown, expected_rates(unknown), (0,))
    assert (found.decode_tps, found.prefill_tps) == ({}, None)


def test_the_best_quantization_that_is_much_faster_is_named_with_its_gain() -> None:
    found = faster_quantization(MODEL, QUESTION, MACHINE, RATES)
    assert found is not None
    name, gain = found
    assert name == "Q6_K"
    assert gain == pytest.approx(1.28, abs=0.1)


def test_what_does_not_run_has_no_faster_form() -> None:
    small = Machine(replace(MACHINE.host, free_bytes=1 << 30))
    assert faster_quantization(MODEL, QUESTION, small, expected_rates(small)) is None


def test_layers_that_the_user_placed_are_predicted_where_they_are() -> None:
    card = next(machine for machine in MACHINES.values() if machine.gpus)
    rates, name = expected_rates(card), card.gpus[0].name
    on_host = replace(QUESTION, gpu_layers={name: 0})
    placed, free = (predict(MODEL, requested, card, rates, (512,)) for requested in (on_host, QUESTION))
    assert placed.decode_tps[512] < 0.5 * free.decode_tps[512]
    run_config = best_assessment(MODEL, on_host, card, rates).profile.run_config
    planned = assess(MODEL.profile(replace(run_config, depth=512)), card, rates, gpu_layers={name: 0})
    assert planned.placement is not None
    assert planned.placement.n_on_gpus == 0
    assert placed.decode_tps[512] == planned.decode_tps
    smaller, smaller_free = (faster_quantization(MODEL, requested, card, rates) for requested in (on_host, QUESTION))
    assert smaller is not None
    assert smaller != smaller_free


# A core with VNNI multiplies and adds 128 pairs of bytes a cycle: the most that any core of today's processors does.
MOST_OPERATIONS_PER_CORE = 2 * 128 * 5e9
_TYPES = sorted(FILE_TYPES)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(OUTLINES)),
    type_name=st.sampled_from(_TYPES),
    n_cores=st.integers(1, 64),
    gb_per_s=st.integers(5, 800),
    n_ubatch=st.sampled_from((64, 128, 512)),
    is_fused=st.booleans(),
    slower=st.none() | st.floats(0.1, 50),
)
def test_no_prompt_is_predicted_faster_than_a_processor_can_compute(
    name: str, type_name: str, n_cores: int, gb_per_s: int, n_ubatch: int, is_fused: bool, slower: float | None
) -> None:
    header = header_of(name)
    model = PlannedModel(header, tuple(header.tensors)).quantized(FILE_TYPES[type_name])
    host = replace(MACHINE.host, n_cores=n_cores, bytes_per_s=gb_per_s * 1e9, free_bytes=1 << 50)
    machine, rates = Machine(host), expected_rates(Machine(host))
    run_config = RunConfig(n_ctx=4096, n_cells=4096, n_ubatch=n_ubatch, is_fused=is_fused)
    if slower is not None:  # another model of another type was measured here
        other = header_of("qwen3-0.6b")
        profile = PlannedModel(other, tuple(other.tensors)).profile(run_config)
        work = prefill_work(profile, allocate(profile, machine, ALL_ON_HOST), ALL_ON_HOST)
        measured = Run(work, 1 / (slower * prefill_s(work, rates, host.name, n_ubatch)), n_ubatch)
        rates = fit_rates(rates, (), [measured])
    profile = model.profile(run_config)
    speed = assess(profile, machine, rates).speed
    assert speed is not None
    n_operations = sum(layer.operations for layer in profile.layers[:-1])
    assert speed.prefill_tps * n_operations < n_cores * MOST_OPERATIONS_PER_CORE
    # a small model waits for its micro-batches to start
    assert speed.prefill_tps < n_ubatch / rates.overhead_s(len(profile.layers))


@pytest.mark.parametrize(
    ("type_name", "measured_tps"),  # a prompt of 256 tokens, 2 AVX-512 cores that read 22.9 GB/s
    [("IQ4_XS", 338), ("Q4_0", 271), ("Q4_K_S", 242), ("Q4_1", 88), ("Q5_0", 177), ("Q8_0", 216)],
)
def test_the_type_of_the_weights_decides_how_fast_a_processor_reads(type_name: str, measured_tps: float) -> None:
    header = header_of("qwen3-0.6b")
    model = PlannedModel(header, tuple(header.tensors)).quantized(FILE_TYPES[type_name])
    machine = Machine(replace(MACHINE.host, bytes_per_s=22.9e9, n_cores=2))
    profile = model.profile(RunConfig(n_ctx=2048, n_cells=2048, n_prompt=256))
    work = prefill_work(profile, allocate(profile, machine, ALL_ON_HOST), ALL_ON_HOST)
    predicted = 1 / prefill_s(work, expected_rates(machine), machine.host.name, 512)
    assert predicted == pytest.approx(measured_tps, rel=0.2)
