"""How long the rest of a prompt takes: estimates against prompts whose cost is known."""

from __future__ import annotations

import random

import pytest

from app.common.prompt_pace import PromptCost, PromptPace


def _read(pace: PromptPace, steps: list[int], token_s: float, growth: float, noise: float = 0.0) -> float:
    """Let `pace` observe steps that take what a prompt of that cost takes; return the moment then."""
    now_s, dice = pace.at_s, random.Random(7)
    for n in steps:
        middle = pace.n_beside + pace.n_read + n / 2
        now_s += n * token_s * (1 + growth * middle) * (1 + dice.uniform(-noise, noise))
        pace.observe(pace.n_read + n, now_s)
    return now_s


def _left_s(pace: PromptPace, token_s: float, growth: float) -> float:
    n = pace.n_tokens - pace.n_read
    return n * token_s * (1 + growth * (pace.n_beside + pace.n_read + n / 2))


@pytest.mark.parametrize("growth", [0.0, 0.0003, 0.004])
@pytest.mark.parametrize("expected", [0.5, 1.0, 2.0], ids=["half as steep", "as steep", "twice as steep"])
@pytest.mark.parametrize("n_beside", [0, 2000])
def test_after_a_tenth_the_rest_is_known_within_a_quarter(growth: float, expected: float, n_beside: int) -> None:
    pace = PromptPace(6000, 0, 5.0, PromptCost(None, expected * growth), n_beside=n_beside)
    now_s = _read(pace, [128, *[80] * 6], 0.01, growth, noise=0.05)
    assert pace.n_read == 608
    assert pace.left_s(now_s) == pytest.approx(_left_s(pace, 0.01, growth), rel=0.25)


def test_before_the_first_step_an_expected_cost_tells_the_time_and_no_cost_none() -> None:
    assert PromptPace(1000, 0, 0.0).left_s(3.0) is None
    assert PromptPace(1000, 0, 0.0, PromptCost(0.01, 0.002)).left_s(0.0) == pytest.approx(20.0)


def test_the_time_of_the_running_step_passes_but_never_all_of_what_is_left() -> None:
    pace = PromptPace(1000, 0, 0.0)
    pace.observe(500, 10.0)
    assert [pace.left_s(now_s) for now_s in (10.0, 14.0, 100.0)] == pytest.approx([10.0, 6.0, 0.5])


def test_a_machine_that_becomes_busy_counts_more_than_its_past() -> None:
    pace = PromptPace(2000, 0, 0.0, PromptCost(None, 0.0))
    now_s = _read(pace, [100, 100], 0.01, 0.0)
    now_s = _read(pace, [100], 0.05, 0.0)
    in_between = pace.left_s(now_s)
    assert in_between is not None
    assert 0.02 * 1700 < in_between < 0.05 * 1700


@pytest.mark.parametrize("expected", [None, 0.0002, 0.0006])
def test_the_growth_is_seen_through_other_programs_that_come_and_go(expected: float | None) -> None:
    pace, dice = PromptPace(6000, 0, 0.0, PromptCost(None, expected), busy_s=0.0), random.Random(3)
    now_s = busy_s = 0.0
    while pace.n_read < 640:
        used_s = 64 * 0.01 * (1 + 0.0003 * (pace.n_read + 32))
        busy_s += used_s
        now_s += used_s * dice.uniform(1.0, 3.0)
        pace.observe(pace.n_read + 64, now_s, busy_s)
    assert pace.cost.growth == pytest.approx(0.0003, rel=0.05)
    assert pace.left_s(now_s) == pytest.approx(2.0 * _left_s(pace, 0.01, 0.0003), rel=0.25)


def test_a_prompt_that_lost_its_place_in_the_cache_begins_anew() -> None:
    pace = PromptPace(1000, 0, 0.0)
    pace.observe(500, 10.0)
    pace.observe(100, 12.0)
    assert (pace.left_s(12.0), pace.n_observed) == (None, 0)
    pace.observe(300, 16.0)
    assert pace.left_s(16.0) == pytest.approx(14.0)


def test_cached_tokens_took_no_time() -> None:
    pace = PromptPace(1000, 600, 0.0)
    pace.observe(800, 2.0)
    assert (pace.left_s(2.0), pace.n_observed) == (pytest.approx(2.0), 200)
