from __future__ import annotations

from itertools import pairwise

import pytest

from app.engine.speculative.acceptance import draft_gains
from app.engine.speculative.step_cost import StepCost


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
