from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.draft import Draft
from app.engine.speculation import Acceptance, StepCost, best_cut


def best_length(draft: Draft, acceptance: Acceptance, cost: StepCost, toll: float = 0.0) -> int:
    return best_cut(acceptance.chances(draft), cost, 1, 1, toll).n_tokens


def first_chance(acceptance: Acceptance, n_matched: int) -> float:
    return next(acceptance.chances(draft(1, n_matched)))


FREE = {1: 1.0, 64: 1.01}
DEAR = {1: 1.0, 64: 64.0}


def draft(n_tokens: int, n_matched: int = 20) -> Draft:
    return Draft(tuple(range(n_tokens)), (1.0,) * n_tokens, n_matched)


def test_when_a_batch_costs_no_more_than_a_token_the_whole_draft_is_tried() -> None:
    assert best_length(draft(16), Acceptance(), StepCost(dict(FREE))) == 16


def test_when_each_token_costs_as_much_as_a_step_nothing_is_drafted() -> None:
    assert best_length(draft(16), Acceptance(), StepCost(dict(DEAR))) == 0


def test_a_step_too_short_for_the_clock_teaches_nothing() -> None:
    cost = StepCost(dict(FREE))
    cost.observe(1, 0.0)
    cost.observe(64, 0.0)
    cost.observe(64, 1.0)
    assert cost.ratios == FREE


def test_a_draft_that_is_never_taken_is_given_up() -> None:
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.observe(draft(3, n_matched=2), 3, 0)
    assert best_length(draft(16, n_matched=2), acceptance, StepCost()) == 0


def test_a_draft_that_began_well_is_expected_to_go_on_well() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(draft(12, n_matched=3), 12, 12)
    assert first_chance(acceptance, 14) > 0.75
    assert first_chance(acceptance, 1) == first_chance(Acceptance(), 1)


def test_a_copy_on_a_cpu_is_drafted_long() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(draft(15, n_matched=30), 15, 15)
    assert best_length(draft(31, n_matched=30), acceptance, StepCost()) >= 15


def test_an_unlikely_way_on_ends_the_draft_before_it() -> None:
    forked = Draft((1, 2, 3, 4), (1.0, 1.0, 0.05, 1.0), 20)
    assert best_length(forked, Acceptance(), StepCost({1: 1.0, 8: 2.0})) == 2


def test_costs_are_learned_from_steps() -> None:
    cost = StepCost()
    for _ in range(60):
        cost.observe(1, 0.010)
        cost.observe(8, 0.011)
    assert cost.ratio(8) == pytest.approx(1.1, abs=0.02)
    assert cost.single_s == pytest.approx(0.010)


def test_one_step_that_was_held_up_does_not_end_drafting() -> None:
    cost = StepCost()
    cost.observe(1, 0.010)
    before = cost.ratio(8)
    cost.observe(8, 60.0)
    assert cost.ratio(8) <= before * 1.41


def test_what_was_measured_bends_what_is_usual_between_and_beyond() -> None:
    usual, found = StepCost(), StepCost.through({4: 2 * StepCost().ratio(4), 16: 3 * StepCost().ratio(16)})
    assert found.ratio(4) == 2 * usual.ratio(4)
    assert found.ratio(16) == 3 * usual.ratio(16)
    assert 2 * usual.ratio(9) < found.ratio(9) < 3 * usual.ratio(9)
    assert found.ratio(48) == pytest.approx(3 * usual.ratio(48))
    assert StepCost.through({}).ratios == usual.ratios


def test_rather_a_whole_block_is_verified_than_some_of_one() -> None:
    for n_draft, n_tried in ((14, 11), (15, 15), (30, 15), (31, 31)):
        assert best_cut([0.98] * n_draft, StepCost(), n_step=1, n_answers=1).n_tokens == n_tried


def test_a_copy_of_the_acceptance_learns_alone() -> None:
    shared = Acceptance()
    own = shared.copy()
    own.observe(draft(1, 1), 1, 1)
    assert first_chance(own, 1) > first_chance(shared, 1)


@given(st.integers(1, 200), st.dictionaries(st.integers(1, 64), st.floats(0.5, 50), min_size=2))
def test_a_cost_is_always_positive(n_tokens: int, ratios: dict[int, float]) -> None:
    assert StepCost(ratios).ratio(n_tokens) > 0


@given(st.integers(0, 20), st.integers(1, 40), st.data())
def test_rates_stay_between_nothing_and_all(n_matched: int, n_drafted: int, data: st.DataObject) -> None:
    acceptance = Acceptance()
    for _ in range(5):
        acceptance.observe(draft(n_drafted, n_matched), n_drafted, data.draw(st.integers(0, n_drafted)))
    assert all(0 <= chance <= 1 for chance in acceptance.chances(draft(n_drafted, n_matched)))


def test_a_draft_saves_a_step_for_each_token_taken_less_what_verifying_it_added() -> None:
    cost = StepCost({1: 1.0, 5: 2.0}, single_s=0.1)
    assert cost.saved_s(1, 4, 4) == pytest.approx(0.1 * (4 - 1))
    assert cost.saved_s(1, 4, 0) == pytest.approx(-0.1)
    assert StepCost().saved_s(1, 4, 4) == 0.0
