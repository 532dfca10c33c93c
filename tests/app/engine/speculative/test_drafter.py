from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from itertools import repeat

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.fake import FakeBackend
from app.engine.loop.scheduler import StepBudget
from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import CONFIDENCE, DraftEstimate, StepCost
from app.engine.speculative.draft_heads import AutoregressiveHeadSource
from app.engine.speculative.draft_source import PROBE_EVERY_TOKENS, DraftRequest, tokens_between_probes
from app.engine.speculative.drafter import Drafter
from app.engine.speculative.suffix_index import Draft
from tests.app.engine.fake_head import FakeHead
from tests.app.engine.sequences import new_sequence

NAME = "computed"
BUDGET = StepBudget(512, 128)
STEPS = StepCost({1: 1.0, 2: 1.2, 4: 1.5, 64: 20.0}, single_s=0.020)
SURE, UNSURE = 0.99, 0.01
RIGHT, OTHER = 200, 201


class Computed:
    """Drafts one token that follows, at `cost` in steps of one token, as sure as `confidence` says for the n-th."""

    name = NAME
    evidence = CONFIDENCE

    def __init__(self, cost: float, confidence: Callable[[int], float]) -> None:
        self.n_asked = 0
        self.n_probes = 0
        self._cost = cost
        self._confidence = confidence
        self._probed_at = 0

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        rate = sequence.drafting.acceptance[NAME].mean_rate
        return DraftEstimate(repeat(rate, min(n_max, 1)), rate, self._cost)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        is_due = len(sequence.tokens) >= self._probed_at + PROBE_EVERY_TOKENS
        self.n_probes += is_due
        return int(is_due)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        self.n_asked += len(requests)
        self._probed_at = max(len(request.sequence.tokens) for request in requests)
        return [Draft((RIGHT,), (self._confidence(self.n_asked),), 0, NAME) for _ in requests]

    def release(self, sequence: Sequence) -> None:
        pass


def new_answer(drafter: Drafter) -> Sequence:
    return new_sequence(range(100, 109), [109], drafter.new_acceptance(), place=0)


def answer(drafter: Drafter, sequence: Sequence, n_steps: int, is_right: Callable[[Draft], bool]) -> int:
    """Run `n_steps` whose samples are what is drafted if `is_right`; return how many drafts were verified."""
    n_verified = 0
    for step in range(n_steps):
        drafter.assign([sequence], BUDGET)
        drafted = sequence.draft or next(iter(sequence.drafting.probes), sequence.draft)
        hit = bool(drafted.tokens) and is_right(drafted)
        drafter.observe_sample(sequence, RIGHT if hit else OTHER)
        if n_draft := len(sequence.draft.tokens):
            n_verified += 1
            drafter.record_outcome(sequence, n_draft, n_draft * hit)
        sequence.tokens.append(300 + step)  # nothing repeats, so that lookups find nothing
        sequence.n_computed += 1
    return n_verified


def never(_draft: Draft) -> bool:
    return False


def when_sure(draft: Draft) -> bool:
    return draft.chances[0] > 0.5


def test_a_source_whose_drafts_are_never_verified_is_not_asked_at_every_step() -> None:
    source = Computed(cost=0.1, confidence=lambda _n: UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    sequence = new_answer(drafter)
    assert answer(drafter, sequence, 300, never) < 10
    asked_before = source.n_asked
    assert asked_before < 40
    answer(drafter, sequence, 300, never)
    assert source.n_asked - asked_before <= 300 // PROBE_EVERY_TOKENS + 1, "probes only"
    assert not drafter.is_draft_worthwhile, "steps need not be scheduled one by one for it"


def test_a_source_that_is_always_wrong_is_probed_less_and_less_often_until_it_is_right() -> None:
    source = Computed(cost=0.1, confidence=lambda _n: UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    sequence = new_answer(drafter)
    answer(drafter, sequence, 300, never)
    acceptance = sequence.drafting.acceptance[source.name]
    assert tokens_between_probes(acceptance) > PROBE_EVERY_TOKENS
    acceptance.observe(Draft((1,), (0.5,), 0, source.name), 1, 1, is_probe=True)
    assert tokens_between_probes(acceptance) == PROBE_EVERY_TOKENS


def test_the_next_answer_knows_that_drafts_were_made_in_vain() -> None:
    source = Computed(cost=0.1, confidence=lambda _n: UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    answer(drafter, new_answer(drafter), 100, never)
    before = source.n_asked
    answer(drafter, new_answer(drafter), PROBE_EVERY_TOKENS // 2, never)
    assert source.n_asked - before <= 1


def test_a_source_pays_that_knows_when_it_is_right_though_half_of_its_drafts_are_not_verified() -> None:
    source = Computed(cost=0.1, confidence=lambda n: SURE if n % 2 else UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    n_verified = answer(drafter, new_answer(drafter), 300, when_sure)
    assert source.n_asked > 250
    assert n_verified > 100


def test_but_not_where_its_drafts_cost_more_than_those_half_save() -> None:
    source = Computed(cost=0.45, confidence=lambda n: SURE if n % 2 else UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    answer(drafter, new_answer(drafter), 300, when_sure)
    assert source.n_asked < 100


def test_a_source_that_has_become_sure_is_asked_again() -> None:
    is_sure = False
    source = Computed(cost=0.1, confidence=lambda _n: SURE if is_sure else UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    answer(drafter, new_answer(drafter), 300, never)
    is_sure = True
    answer(drafter, new_answer(drafter), 30 * PROBE_EVERY_TOKENS, when_sure)
    before = source.n_asked
    answer(drafter, new_answer(drafter), 100, when_sure)
    assert source.n_asked - before == 100


@pytest.mark.parametrize("has_place", [True, False])
def test_a_draft_without_a_place_in_the_step_counts_against_its_source(has_place: bool) -> None:
    source = Computed(cost=0.1, confidence=lambda _n: SURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    sequence = new_answer(drafter)
    drafter.assign([sequence], BUDGET)
    assert sequence.draft.tokens == (RIGHT,)
    if has_place:
        drafter.record_outcome(sequence, 1, 1)
    drafter.release(sequence)  # it ended in this step
    drafter.assign([], BUDGET)
    assert bool(drafter.new_acceptance()[NAME].wasted_cost) == (not has_place)
    assert bool(sequence.drafting.acceptance[NAME].wasted_cost) == (not has_place)


class UnsureHead(FakeHead):
    """A pass takes 0.4 of a step of the model, and finds all tokens equally likely."""

    now_s = 0.0

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        self.now_s += 0.008
        return [np.zeros_like(logits) for logits in super().predict(chunks)]


def test_a_head_that_stops_before_its_draft_is_long_enough_to_pay_takes_little_of_an_answer() -> None:
    backend = FakeBackend()
    head = UnsureHead(backend)
    costs = StepCost({1: 1.0, 2: 1.6, 3: 2.0, 4: 1.35, 64: 20.0}, single_s=0.020)
    source = AutoregressiveHeadSource(NAME, head, 0.4, costs, clock=lambda: head.now_s)
    drafter = Drafter(costs, [source], lambda: head.now_s)
    sequence = new_answer(drafter)
    backend.decode([Chunk(0, 0, sequence.tokens[:-1], 1)])
    n_verified = 0
    for step in range(400):
        drafter.assign([sequence], BUDGET)
        drafted = sequence.draft.tokens or (sequence.drafting.probes and sequence.drafting.probes[0].tokens)
        is_right = bool(drafted) and step % 2 == 0
        drafter.observe_sample(sequence, drafted[0] if is_right else OTHER)
        if n_draft := len(sequence.draft.tokens):
            n_verified += 1
            drafter.record_outcome(sequence, n_draft, int(is_right))
        backend.decode([Chunk(0, sequence.n_computed, sequence.tokens[-1:], 1)])
        sequence.tokens.append(300 + step)
        sequence.n_computed += 1
    assert n_verified < 10
    assert 0.0 < head.now_s < 0.05 * 400 * 0.020


def test_outcomes_count_probes_too_for_a_source_that_does_not_pay_has_nothing_else() -> None:
    source = Computed(cost=5.0, confidence=lambda _n: UNSURE)
    drafter = Drafter(STEPS, [source], lambda: 0.0)
    sequence = new_sequence([1, 2, 3], [4], drafter.new_acceptance())
    for _ in range(3 * PROBE_EVERY_TOKENS):
        drafter.assign([sequence], BUDGET)
        drafter.observe_sample(sequence, OTHER)
        sequence.append(OTHER)
        sequence.n_computed = len(sequence.tokens) - 1
    found = drafter.outcomes[NAME]
    assert found.n_verified == source.n_probes > 1
    assert found.n_accepted == 0
