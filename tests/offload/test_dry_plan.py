from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel
from offload.placement.load_parameters import ON_HOST, LoadParameters
from offload.placement.shares import margin_bytes
from offload.plan import PlacementPlan, dry_plan, parameters_of, plan
from offload.speed.cost_model import expected_rates
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
QUESTION = RunConfig(kv_types=KvTypes(), n_sequences=1)
TWO_CARDS = MACHINES["2 × RTX 3090, 64 GB RAM"]


def with_free(machine: Machine, *free_gib: float) -> Machine:
    cards = zip(machine.gpus, free_gib, strict=True)
    return Machine(machine.host, tuple(replace(gpu, free_bytes=int(gib * GIB)) for gpu, gib in cards))


def planned(machine: Machine, compute_gib: float) -> tuple[PlacementPlan, list[LoadParameters]]:
    """Plan where every device turns out to compute in so much."""
    asked: list[LoadParameters] = []

    def dry_run(setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
        asked.append(parameters)
        return dict.fromkeys((*parameters.devices, "CPU"), int(compute_gib * GIB))

    header = header_of("llama-3.1-8b")
    model = PlannedModel(header, header.tensors)
    return dry_plan(model, QUESTION, machine, expected_rates(machine), dry_run), asked


@pytest.mark.slow
def test_a_plan_that_a_dry_run_confirms_has_the_bytes_of_the_dry_run() -> None:
    found, asked = planned(with_free(TWO_CARDS, 6, 6), 0.25)
    assert len(asked) == 1
    assert asked[0] == parameters_of(found.assessment)
    assert {share.compute_bytes for share in found.assessment.shares} == {GIB // 4}


@pytest.mark.slow
def test_where_more_is_computed_in_than_there_is_room_for_fewer_layers_go_there() -> None:
    machine = with_free(TWO_CARDS, 4, 4)
    lean, _ = planned(machine, 0.1)
    found, asked = planned(machine, 1.5)
    assert len(asked) > 1
    assert parameters_of(found.assessment).n_gpu_layers < parameters_of(lean.assessment).n_gpu_layers
    for share in found.assessment.shares[:-1]:
        assert share.n_bytes <= share.device.free_bytes - margin_bytes(share.device)


@pytest.mark.slow
def test_a_model_that_fits_nowhere_by_the_formula_is_planned_again_with_the_dry_run() -> None:
    host = MACHINES["RTX 4090, 64 GB RAM"].host
    header = header_of("llama-3.1-8b")
    setting = RunConfig(n_ctx=8192, n_cells=8192, n_ubatch=128)  # the smallest that is tried
    just_short = PlannedModel(header, header.tensors).profile(setting).total_bytes + margin_bytes(host) - (50 << 20)
    machine = Machine(replace(host, free_bytes=just_short))
    model = PlannedModel(header, header.tensors)
    assert plan(model, QUESTION, machine, expected_rates(machine)).assessment.verdict is FitLevel.WONT_RUN
    found, asked = planned(machine, 0.01)
    assert asked[0] == ON_HOST
    assert found.assessment.verdict is FitLevel.TIGHT


@pytest.mark.parametrize("compute_gib", [0.01, 40.0])
def test_what_will_not_run_is_left_to_the_processor(compute_gib: float) -> None:
    machine = Machine(replace(TWO_CARDS.host, free_bytes=GIB))
    found, _ = planned(machine, compute_gib)
    assert found.assessment.verdict is FitLevel.WONT_RUN
    assert parameters_of(found.assessment) == ON_HOST


@pytest.mark.slow
def test_scores_that_a_dry_run_leaves_to_gpus_are_the_processors_where_the_cache_is_there() -> None:
    machine = with_free(TWO_CARDS, 1.5, 1.5)

    def dry_run(setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
        assert not parameters.offload_kqv
        return dict.fromkeys(parameters.devices, 2 * GIB) | {"CPU": 1 << 20}

    header = header_of("qwen3-0.6b")
    model, setting = PlannedModel(header, header.tensors), replace(QUESTION, n_ctx=32_768, n_cells=32_768)
    expected = plan(model, setting, machine, expected_rates(machine)).assessment
    assert expected.placement is not None
    assert expected.placement.has_cache_on_host
    found = dry_plan(model, setting, machine, expected_rates(machine), dry_run).assessment
    assert found.shares == expected.shares
    *gpus, host = found.shares
    assert all(share.compute_bytes < host.compute_bytes for share in gpus if share.n_layers)
