from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.shared_draw import SharedDraw, gumbel_noise
from app.engine.request import SamplingParams

TOKENS = (3, 7, 49_151, 262_143)
N_DRAWS = 20_000
# What chi-squared with so many degrees of freedom exceeds once in a thousand.
CRITICAL = {3: 16.3, 9: 27.9}


def _softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def _drawn(seed: int, logits: Sequence[float]) -> list[int]:
    draw = SharedDraw(seed)
    return [draw.token(TOKENS, logits, n)[0] for n in range(N_DRAWS)]


def _chi_squared(counts: Sequence[int], chances: Sequence[float]) -> float:
    n = sum(counts)
    return sum((count - n * chance) ** 2 / (n * chance) for count, chance in zip(counts, chances, strict=True))


LOGITS = [(0.0, 0.0, 0.0, 0.0), (2.0, 1.0, 0.0, -1.5), (-1.0, 4.0, 0.5, 1.0)]


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_tokens_are_drawn_as_often_as_the_softmax_of_their_logits_says(seed: int, logits: tuple[float, ...]) -> None:
    counts = Counter(_drawn(seed, logits))
    assert _chi_squared([counts[token] for token in TOKENS], _softmax(logits)) < CRITICAL[3]


@pytest.mark.parametrize("logits", LOGITS)
def test_a_draw_tells_nothing_about_the_next(logits: tuple[float, ...]) -> None:
    drawn, chances = _drawn(5, logits), _softmax(logits)
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    counts = [pairs[one, other] for one in TOKENS for other in TOKENS]
    expected = [one * other for one in chances for other in chances]
    assert _chi_squared(counts, expected) < 37.7  # 15 degrees of freedom


@pytest.mark.slow
def test_neither_do_those_of_another_seed() -> None:
    pairs = Counter(zip(_drawn(5, LOGITS[0]), _drawn(6, LOGITS[0]), strict=True))
    assert _chi_squared([pairs[one, other] for one in TOKENS for other in TOKENS], [1 / 16] * 16) < 37.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ((2.0, 1.0, 0.0, -1.5), (1.8, 1.1, 0.2, -1.0)),
        ((2.0, 1.0, 0.0, -1.5), (0.0, 0.0, 0.0, 0.0)),
        ((3.0, 0.0, 0.0, 0.0), (0.0, 3.0, 0.0, 0.0)),
        ((0.5, 0.4, 0.3, 0.2), (0.5, 0.4, 0.3, 0.2)),
    ],
)
def test_a_draft_is_accepted_at_least_as_often_as_proved(target: tuple[float, ...], draft: tuple[float, ...]) -> None:
    distance = sum(abs(p - q) for p, q in zip(_softmax(target), _softmax(draft), strict=True)) / 2
    n_same = sum(one == other for one, other in zip(_drawn(1, target), _drawn(1, draft), strict=True))
    assert (1 - distance) / (1 + distance) - 0.01 < n_same / N_DRAWS <= 1 - distance + 0.01


@pytest.mark.slow
def test_a_sure_draft_is_accepted_more_often_than_one_that_is_not() -> None:
    target, draft = LOGITS[1], (1.5, 1.2, 0.4, -1.0)
    by_certainty: dict[bool, list[bool]] = {True: [], False: []}
    for n in range(N_DRAWS):
        token, certainty = SharedDraw(1).token(TOKENS, draft, n)
        assert 0.5 <= certainty <= 1.0
        by_certainty[certainty > 0.75].append(token == SharedDraw(1).token(TOKENS, target, n)[0])
    sure, unsure = (sum(same) / len(same) for same in by_certainty.values())
    assert sure > 0.98 > 0.9 > unsure


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9))
def test_noise_depends_on_seed_draw_and_token_alone(seed: int, n_drawn: int, tokens: list[int]) -> None:
    together = gumbel_noise(seed, n_drawn, tokens)
    assert together == [gumbel_noise(seed, n_drawn, [token])[0] for token in tokens]
    assert all(map(math.isfinite, together))


def test_a_draw_ahead_is_the_draw_that_comes() -> None:
    draw = SharedDraw(9)
    ahead = [draw.token(TOKENS, LOGITS[0], n)[0] for n in range(50)]
    come = []
    for _ in range(50):
        come.append(draw.token(TOKENS, LOGITS[0])[0])
        draw.n_drawn += 1
    assert ahead == come


@pytest.mark.parametrize(
    ("params", "can_be_foreseen"),
    [
        (SamplingParams(), True),
        (SamplingParams(min_p=0.1, typical_p=0.9, dynatemp_range=0.5, logit_bias=((3, -1.0),)), True),
        (SamplingParams(temperature=0.0), False),
        (SamplingParams(top_k=0), False),
        (SamplingParams(top_k=1000), False),
        (SamplingParams(mirostat=2), False),
        (SamplingParams(xtc_probability=0.5, xtc_threshold=0.1), False),
        (SamplingParams(repeat_penalty=1.2), False),
        (SamplingParams(dry_multiplier=0.8), False),
        (SamplingParams(top_n_sigma=1.0), False),
        (SamplingParams(logit_bias=((3, 1.0),)), False),
    ],
)
def test_draws_can_be_foreseen_that_depend_on_the_logits_of_few_tokens(
    params: SamplingParams, can_be_foreseen: bool
) -> None:
    assert (SharedDraw.of(params) is not None) is can_be_foreseen


def test_a_seed_gives_the_same_draws_and_none_gives_others_each_time() -> None:
    seeded = [SharedDraw.of(SamplingParams(seed=seed)) for seed in (4, 4, -1, 2**64 - 1)]
    assert seeded[0] == seeded[1] != seeded[2] == seeded[3]
    assert SharedDraw.of(SamplingParams()) != SharedDraw.of(SamplingParams())
