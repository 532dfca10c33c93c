"""Layers that the user puts on GPUs: their bytes, their speed, and that they may not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel
from offload.placement.shares import overfull
from offload.plan import PlacementPlan, dry_plan, plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UsageError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

RTX_3060 = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
TWO_CARDS = MACHINES["2 × RTX 3090, 64 GB RAM"]
HEADER = header_of("llama-3.1-8b")
SMALL = PlannedModel(HEADER, HEADER.tensors).quantized(file_type_named("Q4_K_M"))
QUESTION = RunConfig(n_ctx=8192, kv_types=KvTypes(), n_sequences=1)
N_LAYERS = 33


def pinned(machine: Machine, question: RunConfig = QUESTION, **gpu_layers: int) -> PlacementPlan:
    return plan(SMALL, replace(question, gpu_layers=gpu_layers), machine, expected_rates(machine))


def test_layers_go_where_they_were_put_and_the_rest_to_the_processor() -> None:
    found = pinned(TWO_CARDS, CUDA0=10, CUDA1=5).assessment
    assert {share.device.name: share.n_layers for share in found.shares} == {"CUDA0": 10, "CUDA1": 5, "CPU": 18}


def test_all_on_the_processor_can_be_wanted_too() -> None:
    found = pinned(RTX_3060, CUDA0=0).assessment
    card, _ = found.shares
    assert (card.weight_bytes, card.cache_bytes) == (0, 0)
    assert found.placement.prompt_gpu == "CUDA0", "it computes prompts all the same"
    assert found.decode_tps == pytest.approx(found.curve[0])


@pytest.mark.slow
@given(st.integers(0, N_LAYERS))
def test_its_speed_is_the_point_of_the_curve_with_as_many_layers(n_layers: int) -> None:
    found = pinned(RTX_3060, CUDA0=n_layers).assessment
    assert found.decode_tps == pytest.approx(found.curve[n_layers], rel=1e-6)


@pytest.mark.slow
@given(st.integers(0, N_LAYERS), st.integers(0, N_LAYERS))
def test_no_choice_that_fits_is_faster_than_the_planners_own(first: int, second: int) -> None:
    if first + second > N_LAYERS:
        return
    own = plan(SMALL, QUESTION, TWO_CARDS, expected_rates(TWO_CARDS))
    chosen = pinned(TWO_CARDS, CUDA0=first, CUDA1=second)
    if chosen.assessment.verdict is not FitLevel.WONT_RUN:
        assert chosen.assessment.turn_s >= own.assessment.turn_s * (1 - 1e-9)


def test_the_planners_choice_set_by_hand_gives_the_same() -> None:
    own = plan(SMALL, QUESTION, RTX_3060, expected_rates(RTX_3060))
    same = pinned(RTX_3060, CUDA0=own.assessment.placement.n_on_gpus)
    assert same.assessment.verdict is own.assessment.verdict is FitLevel.FITS
    assert same.assessment.decode_tps == pytest.approx(own.assessment.decode_tps)


@pytest.mark.slow
def test_a_manual_placement_that_does_not_fit_is_shown_as_such() -> None:
    large = replace(QUESTION, n_ctx=131_072)
    found = pinned(RTX_3060, large, CUDA0=N_LAYERS)
    assert found.assessment.verdict is FitLevel.WONT_RUN
    assert [share.device.name for share in overfull(found.assessment.shares, RTX_3060)] == ["CUDA0"]
    assert found.assessment.decode_tps is not None
    assert found.warnings[0].startswith("CUDA0 would hold ")


def test_fewer_layers_than_fit_are_not_reported_as_all_that_fit() -> None:
    found = pinned(RTX_3060, CUDA0=10)
    assert found.assessment.verdict is FitLevel.PARTIAL
    assert found.warnings[0].startswith("10 of 33 layers are on GPUs: ")


def test_a_dry_run_that_finds_more_leaves_the_layers_and_changes_the_verdict() -> None:
    question = replace(QUESTION, gpu_layers={"CUDA0": N_LAYERS})
    asked = []

    def dry_run(setting, parameters):
        asked.append(parameters)
        return {"CUDA0": 12 << 30, "CPU": 0}

    found = dry_plan(SMALL, question, RTX_3060, expected_rates(RTX_3060), dry_run)
    assert found.assessment.verdict is FitLevel.WONT_RUN
    assert (len(asked), asked[0].n_gpu_layers) == (1, N_LAYERS)


@pytest.mark.parametrize("gpu_layers", [{"CUDA7": 1}, {"CUDA0": -1}, {"CUDA0": N_LAYERS + 1}])
def test_layers_that_cannot_be_so_are_refused(gpu_layers: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        pinned(RTX_3060, **gpu_layers)


@pytest.mark.slow
def test_remedies_contain_their_change_for_programs() -> None:
    header = header_of("gemma-2-9b")
    found = plan(PlannedModel(header, header.tensors), QUESTION, RTX_3060, expected_rates(RTX_3060))
    assert any(remedy.change.file_type for remedy in found.remedies)


@pytest.mark.slow
def test_who_wants_no_remedies_gets_the_same_plan_without_them() -> None:
    question = replace(QUESTION, n_ctx=131_072)
    whole = plan(SMALL, question, RTX_3060, expected_rates(RTX_3060))
    quick = plan(SMALL, question, RTX_3060, expected_rates(RTX_3060), wants_remedies=False)
    assert whole.remedies
    assert quick == replace(whole, remedies=(), drafts=())
