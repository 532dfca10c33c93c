from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.speculative.step_cost import StepCost

FREE = {1: 1.0, 64: 1.01}


def test_a_step_too_short_for_the_clock_is_ignored() -> None:
    cost = StepCost(dict(FREE))
    cost.observe(1, 0.0)
    cost.observe(64, 0.0)
    cost.observe(64, 1.0)
    assert cost.ratios == FREE


def test_costs_are_measured_from_steps() -> None:
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


def test_what_several_answers_cost_is_not_taken_for_the_cost_of_their_tokens() -> None:
    cost = StepCost({1: 1.0, 16: 2.5})
    for _ in range(60):
        cost.observe(1, 0.010)
        cost.observe(8, 0.080, n_answers=8)
    assert cost.ratio(8, n_answers=8) == pytest.approx(8.0, abs=0.1)
    assert cost.ratio(8) == pytest.approx(1.7)
    assert cost.ratio(9, n_answers=8) > cost.ratio(8, n_answers=8)


def test_several_answers_that_cost_less_than_known_lower_the_cost_of_one() -> None:
    cost = StepCost({1: 1.0, 8: 6.0, 16: 9.0})
    for _ in range(60):
        cost.observe(1, 0.010)
        cost.observe(8, 0.020, n_answers=8)
    assert cost.ratio(8) == pytest.approx(2.0, abs=0.1)
    assert cost.per_answer == 0.0


def test_measured_ratios_scale_the_usual_ones_between_and_beyond() -> None:
    usual, found = StepCost(), StepCost.from_measured({4: 2 * StepCost().ratio(4), 16: 3 * StepCost().ratio(16)})
    assert found.ratio(4) == 2 * usual.ratio(4)
    assert found.ratio(16) == 3 * usual.ratio(16)
    assert 2 * usual.ratio(9) < found.ratio(9) < 3 * usual.ratio(9)
    assert found.ratio(48) == pytest.approx(3 * usual.ratio(48))
    assert StepCost.from_measured({}).ratios == usual.ratios


@given(st.integers(1, 200), st.dictionaries(st.integers(1, 64), st.floats(0.5, 50), min_size=2))
def test_a_cost_is_always_positive(n_tokens: int, ratios: dict[int, float]) -> None:
    assert StepCost(ratios).ratio(n_tokens) > 0


def test_a_draft_saves_a_step_for_each_accepted_token_less_the_cost_of_its_verification() -> None:
    cost = StepCost({1: 1.0, 5: 2.0}, single_s=0.1)
    assert cost.saved_s(1, 1, 4, 4) == pytest.approx(0.1 * (4 - 1))
    assert cost.saved_s(1, 1, 4, 0) == pytest.approx(-0.1)
    assert cost.saved_s(1, 1, 4, 0, n_repeated=4) == pytest.approx(-0.2)
    assert StepCost().saved_s(1, 1, 4, 4) == 0.0


def test_a_step_of_another_size_than_the_last_costs_a_change_and_the_next_of_that_size_none() -> None:
    cost = StepCost({1: 1.0, 64: 1.0}, size_change=2.0)
    plain, *drafted = cost.ratios_from(1)
    assert (plain, set(drafted)) == (1.0, {3.0})
    cost.observe(5, 0.010)
    plain, *drafted = cost.ratios_from(1)
    assert (plain, drafted[3]) == (1.0, 1.0), "the way back is paid for"
    assert set(drafted[:3] + drafted[4:]) == {3.0}
    assert cost.min_first_chance(1, 1) == 0.0


def test_a_source_that_drafts_at_every_step_pays_a_part_of_the_first_change() -> None:
    cost = StepCost({1: 1.0, 64: 1.0}, size_change=2.0)
    assert 1.0 < list(cost.ratios_from(1, is_lasting=True))[4] < 1.5
    cost.observe(3, 0.010)
    assert list(cost.ratios_from(1, is_lasting=True))[4] == 3.0, "its drafts may all have one length"


def test_the_steps_that_pay_for_a_change_are_no_measurement_of_their_size() -> None:
    cost = StepCost({1: 1.0, 8: 1.0}, size_change=2.0)
    for _ in range(20):
        for n_tokens in (1, 8):
            for duration_s in (0.020, 0.040, 0.010, 0.010):
                cost.observe(n_tokens, duration_s)
    assert (cost.single_s, cost.ratio(8)) == (pytest.approx(0.010), pytest.approx(1.0))


def test_a_draft_between_plain_steps_saves_less_where_a_change_of_size_costs() -> None:
    cost = StepCost({1: 1.0, 5: 1.0}, single_s=0.1, size_change=2.0)
    assert cost.saved_s(1, 1, 4, 4) == pytest.approx(0.1 * (4 - 2))
    cost.observe(5, 0.1)
    assert cost.saved_s(1, 1, 4, 4) == pytest.approx(0.1 * 4)
