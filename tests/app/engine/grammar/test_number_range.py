from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.grammar.number_range import Bound, integers_between, numbers_between
from tests.app.gbnf_texts import Grammar


def matcher(rule: str) -> re.Pattern[str]:
    """Return the rule, which uses only texts, classes, groups and repetitions, as a regular expression."""
    return re.compile(re.sub(r'"([^"]*)"', lambda found: f"(?:{re.escape(found[1])})", rule).replace(" ", ""))


small_integers = st.one_of(st.none(), st.integers(-1200, 1200))
decimals = st.one_of(st.none(), st.decimals(-30, 30, places=2, allow_nan=False))


def bound(value: Decimal | int | None, is_exclusive: bool) -> Bound | None:
    return None if value is None else Bound(Decimal(value), is_exclusive)


def is_inside(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low.value or (value == low.value and not low.is_exclusive)
    return above and (high is None or value < high.value or (value == high.value and not high.is_exclusive))


@given(small_integers, small_integers, st.booleans(), st.booleans(), st.lists(st.integers(-1500, 1500), max_size=30))
def test_exactly_the_integers_of_a_range_are_allowed(
    low: int | None, high: int | None, is_low_open: bool, is_high_open: bool, others: list[int]
) -> None:
    ends = bound(low, is_low_open), bound(high, is_high_open)
    rule = integers_between(*ends)
    near = [end + step for end in (low, high) if end is not None for step in (-1, 0, 1)]
    for value in {*near, *others, 0, -1, 1, 9, 10, 99, 100}:
        assert bool(rule and matcher(rule).fullmatch(str(value))) == is_inside(Decimal(value), *ends), (value, rule)
    assert not (rule and matcher(rule).fullmatch("-0"))
    assert not (rule and matcher(rule).fullmatch("007"))


@given(
    decimals,
    decimals,
    st.booleans(),
    st.booleans(),
    st.lists(st.decimals(-40, 40, places=3, allow_nan=False), max_size=30),
)
def test_exactly_the_numbers_of_a_range_are_allowed(
    low: Decimal | None, high: Decimal | None, is_low_open: bool, is_high_open: bool, others: list[Decimal]
) -> None:
    ends = bound(low, is_low_open), bound(high, is_high_open)
    rule = numbers_between(*ends)
    steps = [Decimal(step) for step in ("0", "0.01", "-0.01", "0.001", "-0.001", "1", "-1", "0.1", "-0.1")]
    near = [end + step for end in (low, high) if end is not None for step in steps]
    for value in {*near, *others, Decimal(0), Decimal("0.5"), Decimal(-1)}:
        text = format(value or abs(value), "f")
        texts = {text, text.rstrip("0").rstrip(".") if "." in text else text}
        for written in texts:
            allowed = bool(rule and matcher(rule).fullmatch(written))
            assert allowed == is_inside(value, *ends), (written, rule)


def test_safe_integers_of_javascript_are_a_range() -> None:
    """zod 4 describes every `z.number().int()` so."""
    safe = Bound(Decimal(-9007199254740991)), Bound(Decimal(9007199254740991))
    rule = matcher(integers_between(*safe))
    for value in (0, -4, 9007199254740991, -9007199254740991):
        assert rule.fullmatch(str(value))
    for value in (9007199254740992, -9007199254740992, 10**16):
        assert not rule.fullmatch(str(value))


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_a_range_are_numbers_within_it(seed: int) -> None:
    chance = random.Random(seed)
    low, high = sorted(Decimal(chance.randint(-99999, 99999)) / 1000 for _ in range(2))
    grammar = Grammar(f"root ::= {numbers_between(Bound(low), Bound(high))}")
    for _ in range(50):
        assert low <= Decimal(grammar.sample(chance)) <= high


@pytest.mark.slow
@given(
    st.decimals(-10000, 10000, places=3, allow_nan=False),
    st.decimals(Decimal("0.001"), 10000, places=3, allow_nan=False),
    st.randoms(use_true_random=False),
)
def test_no_number_of_a_range_reads_as_an_end_that_does_not_belong_to_it(
    low: Decimal, width: Decimal, chance: random.Random
) -> None:
    high = low + width
    grammar = Grammar(f"root ::= {numbers_between(Bound(low, is_exclusive=True), Bound(high, is_exclusive=True))}")
    for _ in range(20):
        assert float(low) < float(grammar.sample(chance)) < float(high)


@pytest.mark.parametrize(("low", "text"), [("-579", "-578.9999999999999999"), ("0.5", "0.50000000000000000001")])
def test_a_number_too_close_to_an_end_that_does_not_belong_to_it_is_not_allowed(low: str, text: str) -> None:
    rule = matcher(numbers_between(Bound(Decimal(low), is_exclusive=True), None))
    assert not rule.fullmatch(text)
    assert rule.fullmatch(text[:8] + "1")
