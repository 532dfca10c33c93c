from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine, Event
from app.engine.loop.counters import Counters
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost

pytestmark = pytest.mark.slow

LETTERS = b"abcd"
# After each letter the next has these weights: text that repeats itself, so that drafts are made, and often refused.
WEIGHTS = {letter: (70, 15, 10, 5)[-shift:] + (70, 15, 10, 5)[:-shift] for shift, letter in enumerate(LETTERS)}
CRITICAL = 32.9  # what chi-squared with 4 * (4 - 1) degrees of freedom exceeds once in a thousand


class DrawnSampler:
    """Draws from WEIGHTS with random numbers of its own, as llama.cpp's last stage does at temperature 1.

    With `leniency` it breaks the rule on purpose: it accepts that share of the drafts of an "a" that it would have
    refused. (Of any letter would not show: looked up in such a text, drafts are themselves spread like it.)
    """

    def __init__(self, backend: FakeBackend, seed: int, leniency: float) -> None:
        self._backend = backend
        self._random = random.Random(seed)
        self._leniency = leniency

    def sample(self, row: int) -> int:
        history = self._backend._rows[row]
        (token,) = self._random.choices(LETTERS, WEIGHTS[history[-1]])
        *before, drafted = self._backend._rows.get(row + 1, [0])
        is_lenient = before == history and drafted == LETTERS[0] and self._random.random() < self._leniency
        return drafted if is_lenient else token

    def accept(self, token: int) -> None:
        """Do nothing: each letter depends on the one before only."""

    def close(self) -> None:
        """Do nothing."""


class DrawnBackend(FakeBackend):
    leniency = 0.0

    def new_sampler(self, params: SamplingParams, *_arguments: Any, **_options: Any) -> DrawnSampler:
        assert params.seed is not None
        return DrawnSampler(self, params.seed, self.leniency)


def generate(n_answers: int, n_tokens: int, leniency: float = 0.0) -> tuple[list[str], Counters]:
    """Return that many sampled answers, four at a time, with drafts wherever something can be drafted."""
    texts: dict[str, str] = defaultdict(str)

    def collect(event: Event) -> None:
        texts[event.request_id] += getattr(event, "text", "")

    backend = DrawnBackend()
    backend.leniency = leniency
    # With a constant clock no costs are measured: each draft stays as cheap as given.
    engine = Engine(backend, collect, step_cost=StepCost({1: 1.0, 64: 1.01}), clock=lambda: 0.0)
    for number in range(n_answers):
        sampling = SamplingParams(temperature=1.0, seed=number)
        engine.submit(Request(request_id=str(number), prompt="a", sampling=sampling, max_tokens=n_tokens))
    while not engine.is_idle:
        engine.step()
    return list(texts.values()), engine.counters


def chi_squared(texts: Sequence[str]) -> float:
    """Return how far the letters that follow each letter are from WEIGHTS."""
    follows = Counter(pair for text in texts for pair in zip("a" + text, text, strict=False))
    total = 0.0
    for letter, weights in WEIGHTS.items():
        counts = [follows[chr(letter), chr(other)] for other in LETTERS]
        expected = [sum(counts) * weight / sum(weights) for weight in weights]
        total += sum((n - wanted) ** 2 / wanted for n, wanted in zip(counts, expected, strict=True))
    return total


def test_sampling_keeps_its_distribution_with_drafts_on() -> None:
    texts, counters = generate(n_answers=24, n_tokens=300)
    assert counters.n_accepted_tokens > 1000
    assert counters.n_drafted_tokens - counters.n_accepted_tokens > 1000
    assert chi_squared(texts) < CRITICAL


def test_accepting_rejected_drafts_would_show() -> None:
    texts, _ = generate(n_answers=24, n_tokens=300, leniency=1.0)
    assert chi_squared(texts) > CRITICAL
