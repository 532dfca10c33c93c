from __future__ import annotations

from dataclasses import replace

import pytest

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import assess
from offload.plan import best_assessment, faster_quantization, predict
from offload.speed.cost_model import expected_rates
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

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
