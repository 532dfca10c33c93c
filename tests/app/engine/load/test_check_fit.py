from __future__ import annotations

from dataclasses import replace

import pytest

from app.engine.load.sizing import check_fit
from app.engine.protocol.messages import UnfitPolicy
from app.protocol.errors import UnfitError
from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.assessment import FitLevel
from offload.plan import PlacementPlan, plan
from offload.speed.cost_model import expected_rates
from quantizer.system.errors import EngineError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
CARD = MACHINES["RTX 3060 12 GB, 32 GB RAM"]


def planned(free_gib: float, on_card_gib: float | None = None) -> PlacementPlan:
    """A plan of an 8B in Q8_0 (8 GiB) on a machine with so much free."""
    cards = () if on_card_gib is None else (replace(CARD.gpus[0], free_bytes=int(on_card_gib * GIB)),)
    machine = Machine(replace(CARD.host, free_bytes=int(free_gib * GIB)), cards)
    header = header_of("llama-3.1-8b")
    question = RunConfig(n_ctx=2048, n_cells=2048, kv_types=KvTypes())
    return plan(PlannedModel(header, header.tensors), question, machine, expected_rates(machine))


@pytest.mark.parametrize("when_unfit", UnfitPolicy)
def test_a_model_that_fits_has_no_warning(when_unfit: UnfitPolicy) -> None:
    assert check_fit(planned(20, 11.5), when_unfit) == ""


@pytest.mark.parametrize("when_unfit", UnfitPolicy)
def test_a_processor_alone_has_no_warning(when_unfit: UnfitPolicy) -> None:
    assert check_fit(planned(20), when_unfit) == ""


@pytest.mark.parametrize("when_unfit", [UnfitPolicy.WARN, UnfitPolicy.LOAD])
def test_a_partly_offloaded_model_has_a_warning_of_one_sentence(when_unfit: UnfitPolicy) -> None:
    warning = check_fit(planned(20, 5), when_unfit)
    assert "of 33 layers fit" in warning
    assert "tok/s instead of" in warning
    assert "\n" not in warning


def test_a_partly_offloaded_model_needs_a_yes_when_the_user_can_be_asked() -> None:
    with pytest.raises(UnfitError, match=r"tok/s instead of .* What would help: "):
        check_fit(planned(20, 5), UnfitPolicy.ASK)


def test_a_model_beyond_all_memory_is_an_error_with_remedies_unless_the_user_agrees() -> None:
    hopeless = planned(6)
    assert hopeless.assessment.verdict is FitLevel.WONT_RUN
    with pytest.raises(
        EngineError, match=r"Not enough memory: it needs .* and may use .* What would help: .*quantize .* with --yes"
    ):
        check_fit(hopeless, UnfitPolicy.WARN)
    with pytest.raises(UnfitError):
        check_fit(hopeless, UnfitPolicy.ASK)
    assert "it needs" in check_fit(hopeless, UnfitPolicy.LOAD)


def test_a_gpu_without_layers_is_an_error() -> None:
    with pytest.raises(EngineError, match="with --yes"):
        check_fit(planned(7.9, 0.5), UnfitPolicy.WARN)


def test_a_model_that_leaves_a_processor_alone_no_margin_is_loaded() -> None:
    profile = planned(20).assessment.profile
    tight = planned((profile.weight_bytes + profile.cache_bytes + profile.compute_bytes) / GIB + 0.1)
    assert tight.assessment.verdict is FitLevel.WONT_RUN
    assert check_fit(tight, UnfitPolicy.WARN) == ""
