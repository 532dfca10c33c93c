"""What a draft model beside a model would do for its answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.advice.drafts import COPY_ACCEPTANCES, DraftEvidence, DraftOffer, draft_offer, planned_copy
from offload.devices.machine import Machine
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedDraft
from offload.footprint.model import PlannedModel, RunConfig
from offload.plan import PlacementPlan, plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
HERE = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
QUESTION = RunConfig(n_ctx=4096, n_sequences=1)
CARD_GIB = 7.2  # on which each of the drafts costs whole layers, not only parts of them


def model(name: str, file_type: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors).quantized(file_type_named(file_type))


def planned(target: PlannedModel, card_gib: float, siblings: tuple[PlannedDraft, ...] = ()) -> PlacementPlan:
    machine = Machine(HERE.host, (replace(HERE.gpus[0], free_bytes=int(card_gib * GIB)),))
    return plan(target, QUESTION, machine, expected_rates(machine), siblings=lambda: siblings)


def draft(name: str = "qwen3-0.6b") -> PlannedDraft:
    small = model(name, "Q4_K_M")
    return PlannedDraft(name, small.header, small.tensors)


@pytest.fixture(scope="module")
def offers() -> tuple[DraftOffer, ...]:
    return planned(model("llama-3.1-8b", "Q8_0"), CARD_GIB, (draft(),)).drafts


@pytest.mark.slow
def test_copies_and_siblings_are_offered_with_their_bytes_the_fastest_first(offers: tuple[DraftOffer, ...]) -> None:
    names = {offer.what for offer in offers}
    assert names == {"a copy of itself in Q2_K", "a copy of itself in IQ2_XS", "qwen3-0.6b"}
    assert [offer.decode_tps for offer in offers] == sorted((offer.decode_tps for offer in offers), reverse=True)
    sizes = {offer.what: offer.n_bytes for offer in offers}
    assert 3 * GIB < sizes["a copy of itself in Q2_K"] < 4.5 * GIB


@pytest.mark.slow
def test_a_draft_takes_the_place_of_layers(offers: tuple[DraftOffer, ...]) -> None:
    alone = planned(model("llama-3.1-8b", "Q8_0"), CARD_GIB).assessment.placement
    assert alone is not None
    assert all(offer.n_on_gpus < alone.n_on_gpus for offer in offers)


@pytest.mark.slow
def test_the_gain_is_that_over_the_plan_without_it_and_the_least_acceptance_tells_when_it_pays(
    offers: tuple[DraftOffer, ...],
) -> None:
    plain_tps = planned(model("llama-3.1-8b", "Q8_0"), CARD_GIB).assessment.decode_tps
    for offer in offers:
        assert offer.gain == pytest.approx(offer.decode_tps / plain_tps)
        if offer.least_acceptance is not None:
            assert offer.pays == (offer.acceptance >= offer.least_acceptance)


@pytest.mark.slow
def test_there_is_nothing_to_weigh_for_a_model_that_has_a_draft_or_does_not_run() -> None:
    drafting = replace(model("llama-3.1-8b", "Q8_0"), auxiliary=AuxiliaryModels(draft=draft()))
    assert planned(drafting, 7).drafts == ()
    small = Machine(replace(HERE.host, free_bytes=GIB))
    assert plan(model("llama-3.1-8b", "Q8_0"), QUESTION, small, expected_rates(small), siblings=tuple).drafts == ()


@pytest.mark.parametrize(
    ("file_type", "card_gib", "pays"), [("F16", 24, True), ("Q8_0", 24, True), ("Q8_0", 7, False), ("Q8_0", 0, False)]
)
def test_a_copy_pays_where_a_gpu_has_all_layers_and_never_where_the_processor_has_some(
    file_type: str, card_gib: int, pays: bool
) -> None:
    gpus = (replace(HERE.gpus[0], total_bytes=card_gib * GIB, free_bytes=card_gib * GIB),) if card_gib else ()
    machine = Machine(HERE.host, gpus)
    found = plan(model("llama-3.1-8b", file_type), QUESTION, machine, expected_rates(machine), siblings=tuple)
    assert {offer.file_type for offer in found.drafts} == set(COPY_ACCEPTANCES)
    assert all(offer.pays is pays for offer in found.drafts)


def test_drafts_are_weighed_only_where_siblings_can_be_found() -> None:
    assert plan(model("llama-3.1-8b", "Q8_0"), QUESTION, HERE, expected_rates(HERE)).drafts == ()


def test_an_offer_follows_what_was_measured_of_a_draft() -> None:
    target = model("llama-3.1-8b", "Q8_0")
    machine = Machine(HERE.host, (replace(HERE.gpus[0], total_bytes=24 * GIB, free_bytes=24 * GIB),))
    rates, copy = expected_rates(machine), planned_copy(target)
    found = plan(target, QUESTION, machine, rates).assessment
    assert copy is not None

    def gain(known: DraftEvidence) -> float:
        offer = draft_offer(target, found.profile.run_config, found, rates, copy, known)
        assert offer is not None
        return offer.gain

    assert gain(DraftEvidence(0.9)) > gain(DraftEvidence(0.5))
    assert gain(DraftEvidence(0.8, step_cost=0.1)) > gain(DraftEvidence(0.8, step_cost=0.5)) > 1.0
    assert gain(DraftEvidence(0.8, step_cost=0.9)) < 1.0


@pytest.mark.slow
def test_a_draft_gains_less_where_each_of_its_tokens_needs_other_experts() -> None:
    """Eight of 128: a step of four tokens reads nearly four times as many."""
    (offer,) = (
        each for each in planned(model("qwen3-30b-a3b", "Q4_K_M"), 8, (draft(),)).drafts if each.what == "qwen3-0.6b"
    )
    assert not offer.pays
    assert offer.n_tokens == 1, "the shortest is the least bad"


def test_a_copy_that_is_hardly_smaller_is_not_offered() -> None:
    found = planned(model("llama-3.1-8b", "Q2_K"), 2)
    assert found.assessment.placement is not None
    assert found.drafts == ()
