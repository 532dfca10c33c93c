from __future__ import annotations

from itertools import pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.speculative.cost_model import (
    AGREEMENT,
    CONFIDENCE,
    MATCH_LENGTH,
    MAX_DRAFT_TOKENS,
    Acceptance,
    DraftLedger,
    Evidence,
    Rejection,
    StepCost,
    best_draft_length,
    draft_gains,
)
from app.engine.speculative.suffix_index import Draft


def best_length(draft: Draft, acceptance: Acceptance, cost: StepCost, draft_cost: float = 0.0) -> int:
    return best_draft_length(acceptance.chances(draft), cost, 1, 1, draft_cost).n_tokens


def first_chance(acceptance: Acceptance, n_matched: int) -> float:
    return next(acceptance.chances(draft(1, n_matched)))


Ratios = dict[int, float]
FREE = {1: 1.0, 64: 1.01}
DEAR = {1: 1.0, 64: 64.0}


def draft(n_tokens: int, n_matched: int = 20) -> Draft:
    return Draft(tuple(range(n_tokens)), (1.0,) * n_tokens, n_matched)


def test_when_a_batch_costs_no_more_than_a_token_the_whole_draft_is_verified() -> None:
    assert best_length(draft(16), Acceptance(), StepCost(dict(FREE))) == 16


def test_when_each_token_costs_as_much_as_a_step_nothing_is_drafted() -> None:
    assert best_length(draft(16), Acceptance(), StepCost(dict(DEAR))) == 0


def test_drafts_that_are_never_accepted_are_no_longer_verified() -> None:
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.observe(draft(3, n_matched=2), 3, 0)
    assert best_length(draft(16, n_matched=2), acceptance, StepCost()) == 0


def test_later_tokens_of_a_draft_have_a_higher_chance() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(draft(12, n_matched=3), 12, 12)
    assert first_chance(acceptance, 14) > 0.75
    assert first_chance(acceptance, 1) == first_chance(Acceptance(), 1)


@pytest.mark.parametrize(("evidence", "n_drafts"), [(MATCH_LENGTH, 6), (AGREEMENT, 6), (CONFIDENCE, 60)])
@pytest.mark.parametrize("n_edits", [1, 10, 100])
def test_new_text_after_edits_is_found_out_by_few_drafts(evidence: Evidence, n_drafts: int, n_edits: int) -> None:
    shared = Acceptance(evidence)
    for _ in range(n_edits):
        shared.observe(draft(16), 16, 16)
    own, n_failed = shared.for_next_answer(), 0
    assert first_chance(own, 20) == pytest.approx(first_chance(shared, 20)), "the rates are the same"
    while first_chance(own, 20) > 0.35:  # of which a draft begins to pay, with the usual costs
        own.observe(draft(3), 3, 0)
        n_failed += 1
    assert n_failed <= n_drafts


def test_an_edit_after_new_text_is_drafted_soon() -> None:
    shared = Acceptance(AGREEMENT)
    for _ in range(100):
        shared.observe(draft(3), 3, 0)
    own, n_tokens = shared.for_next_answer(), 0
    while first_chance(own, 20) < 0.8:
        own.observe(draft(1), 1, 1, is_probe=True)
        n_tokens += 1
    assert n_tokens <= 12


def test_a_copy_on_a_cpu_is_drafted_long() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(draft(15, n_matched=30), 15, 15)
    assert best_length(draft(31, n_matched=30), acceptance, StepCost()) >= 15


def test_a_draft_ends_before_an_unlikely_token() -> None:
    forked = Draft((1, 2, 3, 4), (1.0, 1.0, 0.05, 1.0), 20)
    assert best_length(forked, Acceptance(), StepCost({1: 1.0, 8: 2.0})) == 2


def test_a_whole_block_is_verified_rather_than_part_of_one() -> None:
    for n_draft, n_tried in ((14, 11), (15, 15), (30, 15), (31, 31)):
        assert best_draft_length([0.98] * n_draft, StepCost(), n_step=1, n_answers=1).n_tokens == n_tried


def test_a_draft_that_costs_repeated_tokens_when_it_is_rejected_must_be_likelier() -> None:
    def length(chance: float, rejection: Rejection) -> int:
        return best_draft_length([chance] * 15, StepCost(), 1, 1, rejection=rejection).n_tokens

    assert length(0.65, Rejection()) > 0
    assert length(0.65, Rejection(n_free=0)) == 0
    assert length(0.98, Rejection(n_free=0)) > 0
    assert length(0.65, Rejection(n_free=15)) == length(0.65, Rejection())


def test_a_draft_that_splits_the_batch_pays_for_both_parts() -> None:
    cost = StepCost({1: 1.0, 4: 1.2, 8: 1.4, 16: 2.0, 64: 8.0})
    apart = Rejection(n_known=1, is_split=True)
    assert best_draft_length([0.9] * 3, cost, 4, 4).n_tokens == 3
    assert best_draft_length([0.9] * 3, cost, 4, 4, rejection=apart).n_tokens == 0
    assert best_draft_length([0.9] * 3, cost, 1, 1, rejection=apart).n_tokens == 3


def test_beside_answers_with_large_states_an_unlikely_draft_does_not_pay() -> None:
    cost = StepCost.from_measured({4: 1.19, 16: 2.86})
    for _ in range(30):
        cost.observe(1, 0.028)
        cost.observe(8, 0.130, n_answers=8)
    apart = Rejection(n_free=3, is_split=True)
    assert cost.min_first_chance(8, 8) > 0.0
    assert best_draft_length([0.1] * 7, cost, 8, 8, draft_cost=0.5, rejection=apart).n_tokens == 0


def test_a_copy_of_the_acceptance_is_independent() -> None:
    shared = Acceptance()
    own = shared.for_next_answer()
    own.observe(draft(1, 1), 1, 1)
    assert first_chance(own, 1) > first_chance(shared, 1)


@given(st.integers(0, 20), st.integers(1, 40), st.data())
def test_rates_stay_between_0_and_1(n_matched: int, n_drafted: int, data: st.DataObject) -> None:
    acceptance = Acceptance()
    for _ in range(5):
        acceptance.observe(draft(n_drafted, n_matched), n_drafted, data.draw(st.integers(0, n_drafted)))
    assert all(0 <= chance <= 1 for chance in acceptance.chances(draft(n_drafted, n_matched)))


@given(st.integers(1, 40), st.integers(1, 4), st.floats(0, 1), st.dictionaries(st.integers(2, 64), st.floats(0.5, 50)))
def test_no_draft_pays_whose_first_token_has_at_most_the_minimum_chance(
    n_step: int, n_answers: int, share: float, ratios: Ratios
) -> None:
    cost = StepCost({1: 1.0, **ratios})
    minimum = cost.min_first_chance(n_step, n_answers)
    chances = [min(1.0, max(0.0, share * minimum)), *repeat(1.0, MAX_DRAFT_TOKENS - 1)]
    assert best_draft_length(chances, cost, n_step, n_answers).gain == pytest.approx(1.0) or minimum < 0


def test_on_a_cpu_a_quarter_is_the_minimum_chance_that_may_pay() -> None:
    assert 0.2 < StepCost().min_first_chance(1, 1) < 0.3
    assert best_draft_length([0.3, *repeat(1.0, 14)], StepCost(), 1, 1).n_tokens > 0
    assert StepCost({1: 1.0, 64: 64.0}).min_first_chance(1, 1) == pytest.approx(1.0)


@given(st.integers(0, 80), st.integers(1, MAX_DRAFT_TOKENS), st.lists(st.tuples(st.integers(0, 80), st.booleans())))
def test_the_first_chance_of_an_estimate_is_an_upper_bound(
    n_matched: int, n_tokens: int, tried: list[tuple[int, bool]]
) -> None:
    acceptance = Acceptance()
    for n_before, is_taken in tried:
        acceptance.observe(draft(1, n_before), 1, int(is_taken))
    estimate = acceptance.upper_bound(n_matched, n_tokens)
    chances = list(estimate.chances)
    assert len(chances) == n_tokens
    assert chances[0] <= estimate.first


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


def test_two_steps_that_cost_twice_the_expected_teach_most_of_it_and_sizes_near_them_too() -> None:
    """As with SmolLM2 in Q4_1, of which a step of 32 tokens costs 15.4 of one and not 8.4."""
    cost, usual = StepCost(), StepCost()
    cost.observe(1, 0.010)
    for _ in range(2):
        cost.observe(32, 0.010 * 2 * usual.ratio(32))
    assert cost.ratio(32) > 1.55 * usual.ratio(32)
    assert 1.3 * usual.ratio(28) < cost.ratio(28) < 2 * usual.ratio(28)
    assert cost.ratio(8) == pytest.approx(usual.ratio(8)), "four times smaller steps may use other kernels"


def test_what_was_measured_of_a_size_is_not_changed_by_another() -> None:
    cost = StepCost.from_measured({16: 5.0})
    cost.observe(1, 0.010)
    cost.observe(17, 1.0)
    assert cost.ratio(16) == 5.0
    assert cost.measured.keys() == {16, 17}


def test_only_measured_sizes_are_stored_for_the_next_load() -> None:
    cost = StepCost.from_measured({4: 2.5}, expected={1: 1.0, 64: 40.0})
    assert cost.measured == {4: 2.5}
    cost.observe(1, 0.010)
    cost.observe(9, 0.060)
    assert cost.measured.keys() == {4, 9}


def test_expected_costs_take_the_place_of_the_usual_ones() -> None:
    expected = {1: 1.0, 16: 8.0, 32: 16.0, 64: 32.0}
    assert StepCost.from_measured({}, expected=expected).ratios == expected
    assert StepCost.from_measured({16: 4.0}, expected=expected).ratio(32) == pytest.approx(8.0)


COPIED = {24: 6.0, 32: 7.6, 64: 14.6}


def test_copies_of_weights_count_only_while_they_are_there() -> None:
    cost = StepCost.from_measured({}, expected={1: 1.0, 16: 8.0, 23: 11.8, 24: 12.3, 32: 16.2, 64: 33.0}, copied=COPIED)
    assert (cost.ratio(23), cost.ratio(32)) == (11.8, 16.2)
    cost.use_copies(are_there=True)
    assert (cost.ratio(23), cost.ratio(24), cost.ratio(32)) == (11.8, 6.0, 7.6)
    cost.observe(1, 0.010)
    cost.observe(32, 0.010 * 9.6)
    assert 7.6 < cost.ratio(32) < 9.6
    cost.use_copies(are_there=False)
    assert cost.ratio(32) == 16.2
    assert cost.measured == {}, "what steps cost with copies is no cost of the model's own weights"


def test_costs_with_copies_belong_to_the_threads_that_compute_too() -> None:
    cost = StepCost.from_measured({}, copied=COPIED)
    cost.use_copies(are_there=True)
    cost.use_threads(2)
    cost.use_threads(1)
    cost.observe(1, 0.010)
    cost.observe(32, 0.150)
    assert cost.ratio(32) > 7.6
    cost.use_threads(2)
    assert cost.ratio(32) == 7.6


def test_a_draft_may_lose_little_until_others_have_gained() -> None:
    """A step of 24 tokens is the cheapest for each token and costs 5 steps of one if nothing is accepted."""
    cost = StepCost({1: 1.0, 2: 1.5, 16: 8.3, 23: 11.8, 24: 6.0, 32: 7.6, 64: 14.6})
    lengths, ledger = [], DraftLedger()
    for _ in range(5):
        found = best_draft_length([0.97] * 63, cost, 1, 1, max_loss=ledger.max_loss(n_output=10))
        lengths.append(found.n_tokens)
        ledger.saved_steps += cost.saved_steps(1, 1, found.n_tokens, found.n_tokens)
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (3, 23)


@pytest.mark.parametrize("n_output", [20, 128, 1000])
def test_an_answer_that_repeats_nothing_never_loses_more_than_a_few_steps(n_output: int) -> None:
    """Sources that are always wrong, and cost as much as they may."""
    ledger = DraftLedger()
    for n_written in range(n_output):
        ledger.observe_probe(is_accepted=False)
        ledger.saved_steps -= max(0.0, ledger.max_loss(n_written))
    assert -ledger.saved_steps <= 1.5 + 0.01 * n_output


def test_what_was_expected_and_not_drafted_allows_a_draft_after_some_failed() -> None:
    ledger = DraftLedger(saved_steps=-2.0)
    assert ledger.max_loss(10) < 0
    for _ in range(4):
        ledger.observe_probe(is_accepted=True)
    assert ledger.max_loss(10) == pytest.approx(1.6)
    for _ in range(4):
        ledger.observe_probe(is_accepted=False)
    assert ledger.max_loss(10) < 0


# Costs of steps, a chance of each token, and the tokens to draft: as expected of types, without copies and with them.
@pytest.mark.parametrize(
    ("expected", "has_copies", "chance", "n_tokens"),
    [
        ({1: 1.0, 64: 64.0}, False, 0.99, 0),  # a kernel that takes a token after the other
        ({1: 1.0, 16: 8.3, 32: 16.2, 64: 33.3}, False, 0.4, 0),
        ({1: 1.0, 16: 8.3, 32: 16.2, 64: 33.3}, False, 0.45, 0),
        ({1: 1.0, 2: 1.5, 16: 8.3, 32: 16.2, 64: 33.3}, False, 0.7, 1),
        ({1: 1.0, 2: 1.5, 16: 8.3, 23: 11.8, 24: 12.3, 32: 16.2, 64: 33.3}, True, 0.97, 23),
        ({1: 1.0, 2: 1.5, 16: 8.3, 23: 11.8, 24: 12.3, 32: 16.2, 64: 33.3}, True, 0.4, 0),
        ({1: 1.0, 64: 1.01}, False, 0.4, 4),
    ],
)
def test_a_draft_is_as_long_as_its_price_and_its_chances_make_worthwhile(
    expected: dict[int, float], has_copies: bool, chance: float, n_tokens: int
) -> None:
    cost = StepCost.from_measured({}, expected=expected, copied=COPIED)
    cost.use_copies(are_there=has_copies)
    assert best_draft_length([chance] * MAX_DRAFT_TOKENS, cost, n_step=1, n_answers=1).n_tokens == n_tokens


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


def test_when_larger_steps_cost_no_more_a_draft_gains_its_accepted_tokens() -> None:
    free = StepCost({1: 1.0, 64: 1.0})
    by_acceptance = {row.acceptance: row for row in draft_gains(free)}
    assert by_acceptance[0.5].gains[1] == pytest.approx(1.5)
    assert by_acceptance[0.5].gains[3] == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_when_each_token_costs_a_step_no_draft_pays() -> None:
    dear = StepCost({1: 1.0, 64: 64.0})
    for row in draft_gains(dear):
        assert (row.best_length, row.best_gain) == (0, 1.0)
        assert all(gain < 1 for gain in row.gains.values())


def test_the_best_length_gains_at_least_as_much_as_every_one_in_the_table() -> None:
    for row in draft_gains(StepCost()):
        assert row.best_gain >= max(1.0, *row.gains.values()) - 1e-9


def test_more_acceptance_never_gains_less() -> None:
    rows = draft_gains(StepCost())
    for worse, better in pairwise(rows):
        assert all(better.gains[length] >= gain for length, gain in worse.gains.items())
