"""How long the rest of a prompt takes: estimates against prompts whose cost is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@dataclass
class Machine:
    """A machine that gives a prompt `share` of its processors, and whose steps differ by `noise` in processor time."""

    pace: PromptPace
    token_used_s: float
    growth: float
    share: float
    noise: float = 0.03
    has_clock: bool = True
    now_s: float = 0.0
    busy_s: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(3))

    def read(self, n: int, waiting: float = 1.0) -> None:
        """Read a step of `n` tokens, with threads that wait for each other so long by computing."""
        n = min(n, self.pace.n_tokens - self.pace.n_read)
        middle = self.pace.n_beside + self.pace.n_read + n / 2
        used_s = n * self.token_used_s * (1 + self.growth * middle) * waiting
        used_s *= 1 + self.dice.uniform(-self.noise, self.noise)
        self.busy_s += used_s
        self.now_s += used_s / self.share
        self.pace.observe(self.pace.n_read + n, self.now_s, self.busy_s if self.has_clock else None)

    def read_to(self, n_read: int, n_step: int = 64) -> None:
        while self.pace.n_read < n_read:
            self.read(n_step)

    @property
    def error(self) -> float:
        """By which share of the true rest the estimate is off, if the machine goes on like this."""
        left_s = self.pace.left_s(self.now_s)
        assert left_s is not None
        return left_s / (_left_s(self.pace, self.token_used_s, self.growth) / self.share) - 1


def _machine(
    *,
    growth: float = 0.0003,
    share: float = 0.5,
    expected: float | None = 1.0,
    n_tokens: int = 6000,
    n_read: int = 0,
    **others: Any,
) -> Machine:
    known = PromptCost(None, None if expected is None else growth * expected)
    return Machine(PromptPace(n_tokens, n_read, 0.0, known, busy_s=0.0), 0.006, growth, share, **others)


@settings(max_examples=40)
@given(
    growth=st.floats(0, 0.005),
    expected=st.floats(0.75, 1.35),
    share=st.floats(0.1, 2.0),
    cached=st.floats(0, 0.8),
    n_step=st.integers(1, 256),
    n_steps=st.integers(24, 150),
    has_clock=st.booleans(),
)
def test_from_a_tenth_on_the_rest_is_known_within_a_quarter_while_the_load_is_the_same(
    growth: float, expected: float, share: float, cached: float, n_step: int, n_steps: int, has_clock: bool
) -> None:
    n_tokens = n_step * n_steps
    n_cached = int(n_tokens * cached)
    machine = _machine(
        growth=growth, share=share, expected=expected, n_tokens=n_tokens, n_read=n_cached, has_clock=has_clock
    )
    machine.read_to(n_cached + max(1, (n_tokens - n_cached) // 10), n_step)
    while machine.pace.n_read < n_tokens - n_step:
        assert abs(machine.error) < 0.25
        machine.read(n_step)


@pytest.mark.slow
def test_a_very_long_prompt_is_followed_with_bounded_work() -> None:
    machine = _machine(n_tokens=100_000)
    machine.read_to(99_000)
    assert len(machine.pace._steps) <= 128
    assert machine.pace.n_observed == 99_008
    assert abs(machine.error) < 0.1


@pytest.mark.parametrize("has_clock", [True, False])
@pytest.mark.parametrize("growth", [0.0, 0.0003, 0.003])
@pytest.mark.parametrize(("before", "after"), [(1.0, 0.5), (0.5, 1.0), (1.5, 0.5), (0.5, 1.5)])
@pytest.mark.parametrize("at", [1000, 3000])
def test_soon_after_a_load_begins_or_ends_the_rest_is_known_again(
    before: float, after: float, growth: float, at: int, has_clock: bool
) -> None:
    machine = _machine(growth=growth, share=before, n_tokens=12_000, has_clock=has_clock)
    machine.read_to(at)
    assert abs(machine.error) < 0.1
    machine.share, changed_s = after, machine.now_s
    while machine.now_s < changed_s + 20 or machine.pace.n_read < at + 3 * 64:
        machine.read(64)
    assert machine.pace.n_read < 11_000
    while machine.pace.n_read < 11_800:
        assert abs(machine.error) < 0.25
        machine.read(64)


def test_a_trial_of_more_threads_that_wait_for_each_other_changes_no_estimate() -> None:
    machine = _machine()
    machine.read_to(600)
    for _ in range(5):
        for waiting in (*[1.0] * 14, *[1.35] * 4):
            machine.read(64, waiting)
            if machine.pace.n_read < 5900:
                assert abs(machine.error) < 0.15
    assert machine.pace.cost.growth == pytest.approx(0.0003, rel=0.1)


@pytest.mark.parametrize("expected", [None, 0.67, 2.0])
def test_the_growth_is_seen_through_other_programs_that_come_and_go(expected: float | None) -> None:
    machine, dice = _machine(expected=expected), random.Random(5)
    while machine.pace.n_read < 5000:
        machine.share = dice.uniform(0.3, 1.0)
        machine.read(64)
    assert machine.pace.cost.growth == pytest.approx(0.0003, rel=0.05)


def test_a_trial_of_a_number_of_threads_that_gets_less_of_the_machine_leaves_the_estimate_in_bounds() -> None:
    """Two threads for 8 steps, one for 4, which gets 0.6 of their share: measured beside two programs in groups."""
    machine = _machine(share=0.6)
    seen: list[tuple[float, float]] = []
    while machine.pace.n_read < 6000:
        for share in (*[0.6] * 8, *[0.36] * 4):
            machine.share = share
            if machine.pace.n_read < 6000:
                machine.read(64)
                seen.append((machine.now_s, machine.pace.left_s(machine.now_s) or 0.0))
    ratios = [left_s / (machine.now_s - now_s) for now_s, left_s in seen[9:-12]]
    assert all(0.75 < ratio < 1.25 for ratio in ratios)


def test_a_clock_of_the_processors_that_stands_still_is_not_used() -> None:
    pace = PromptPace(2000, 0, 0.0, PromptCost(None, 0.0), busy_s=4.0)
    for n_read in range(100, 600, 100):
        pace.observe(n_read, n_read / 100, 4.0)
    assert pace.left_s(5.0) == pytest.approx(15.0)


def test_what_comes_after_a_step_that_takes_long_is_still_to_come() -> None:
    pace = PromptPace(1000, 0, 0.0, PromptCost(None, 0.0))
    pace.observe(100, 1.0)
    pace.observe(200, 2.0)
    assert [pace.left_s(now_s) for now_s in (2.0, 2.5, 3.0, 9.0)] == pytest.approx([8.0, 7.5, 7.0, 7.0])


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
