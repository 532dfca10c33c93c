"""How long the rest of a prompt will take, from what its tokens took so far. Pure.

A token attends to all before it, so later ones take longer: one at position p takes a · (1 + g·p) seconds. Before a
prompt begins, both are expected (`PromptCost`); with each step a becomes that of the machine at this moment, and g that
of this prompt, the more certain it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_KEPT = 0.93  # of the weight of earlier steps, after each: other programs come and go
_LEAST_SAMPLES = 3  # steps that a line is laid through
_LEAST_STEP_TOKENS = 16  # a shorter step says little about a token's time
_EXPECTED_ERROR = 0.5  # of an expected slope, a share of it
_LEAST_ERROR = 1e-5  # of a slope; none is known better
# Of the time of a token in the middle of the steps, what is due to those before it: where nothing is expected, how far
# that may be off, and at most.
_USUAL_SHARE, _USUAL_ERROR, _MOST_SHARE = 0.25, 0.5, 0.95


@dataclass(frozen=True, slots=True)
class PromptCost:
    """The seconds of a prompt's first token, among many that are computed together, and by which share of that each
    token takes longer for each one before it; None where nothing is known."""

    token_s: float | None = None
    growth: float | None = None


@dataclass(slots=True)
class PromptPace:
    """The pace of a prompt of `n_tokens`; the first `n_read` are there at `at_s`, when its computing begins. Where
    attention passes over the cells of other prompts too, `n_beside` of them count like tokens before it. Where it is
    known how long processors were busy with it, `busy_s` by then, its growth is seen through what other programs take.
    """

    n_tokens: int
    n_read: int
    at_s: float
    expected: PromptCost = field(default_factory=PromptCost)
    n_beside: int = 0
    busy_s: float | None = None
    begun_s: float = field(init=False)
    _steps: list[tuple[int, int, float, float]] = field(default_factory=list)  # from, to, seconds, of them busy

    def __post_init__(self) -> None:
        self.begun_s = self.at_s

    def observe(self, n_read: int, now_s: float, busy_s: float | None = None) -> None:
        """Note that `n_read` tokens are read now; fewer than before begin anew, as after a loss of the cache."""
        taken_s = now_s - self.at_s
        used_s = taken_s if busy_s is None or self.busy_s is None else busy_s - self.busy_s
        if n_read < self.n_read:
            self._steps.clear()
        elif n_read > self.n_read and taken_s > 0:
            self._steps.append((self.n_read, n_read, taken_s, used_s))
        if n_read != self.n_read:
            self.n_read, self.at_s, self.busy_s = n_read, now_s, busy_s

    @property
    def next_token_s(self) -> float:
        """The seconds of the next token, 0 where nothing is known yet."""
        cost = self.cost
        return (cost.token_s or 0.0) * (1 + (cost.growth or 0.0) * (self.n_beside + self.n_read))

    @property
    def n_observed(self) -> int:
        """The tokens of the steps that its cost is taken from."""
        return sum(end - begin for begin, end, _, _ in self._steps)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the prompt is read, None where nothing is known yet."""
        cost = self.cost
        if cost.token_s is None:
            return None
        left_s = cost.token_s * self._work(self.n_read, self.n_tokens, cost.growth or 0.0)
        # The time of the step that is computed passes; when it ends nobody knows.
        return max(left_s - (now_s - self.at_s), 0.05 * left_s)

    @property
    def cost(self) -> PromptCost:
        """The cost of a token, as the steps so far show it."""
        growth = self._growth()
        done, taken_s = 0.0, 0.0
        for begin, end, step_s, _ in self._steps:
            done, taken_s = _KEPT * done + self._work(begin, end, growth), _KEPT * taken_s + step_s
        return PromptCost(taken_s / done if done else self.expected.token_s, growth)

    def _growth(self) -> float:
        """Return the growth that a line through the steps has, and the expected one, each weighed by how certain it
        is: the inverse of its variance. Both are compared as slopes over the mean time of a token, which stay within
        bounds however steps scatter."""
        steps = [
            (self.n_beside + (begin + end) / 2, busy_s / (end - begin), end - begin)
            for begin, end, _, busy_s in self._steps
            if end - begin >= _LEAST_STEP_TOKENS
        ]
        expected = self.expected.growth
        if len(steps) < _LEAST_SAMPLES:
            return expected or 0.0
        n_all = sum(n for _, _, n in steps)
        middle = sum(at * n for at, _, n in steps) / n_all
        mean_s = sum(token_s * n for _, token_s, n in steps) / n_all
        spread = sum(n * (at - middle) ** 2 for at, _, n in steps)
        if mean_s <= 0:  # a clock that is too coarse
            return expected or 0.0
        slope = sum(n * (at - middle) * (token_s - mean_s) for at, token_s, n in steps) / spread
        rest = sum(n * (token_s - mean_s - slope * (at - middle)) ** 2 for at, token_s, n in steps)
        own_weight = 1 / max(math.sqrt(rest / (len(steps) - 2) / spread) / mean_s, _LEAST_ERROR) ** 2
        if expected is None:
            share, error = _USUAL_SHARE / middle, _USUAL_ERROR / middle
        else:
            share = expected / (1 + expected * middle)
            error = _EXPECTED_ERROR * share
        expected_weight = 1 / max(error, _LEAST_ERROR) ** 2
        share = (slope / mean_s * own_weight + share * expected_weight) / (own_weight + expected_weight)
        share = min(max(share, 0.0), _MOST_SHARE / middle)
        return share / (1 - share * middle)

    def _work(self, begin: int, end: int, growth: float) -> float:
        """Return the work of the tokens from `begin` to `end`, in first tokens."""
        return (end - begin) * (1 + growth * (self.n_beside + (begin + end) / 2))
