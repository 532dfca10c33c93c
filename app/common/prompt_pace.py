"""How long the rest of a prompt will take, from what its tokens took so far. Pure.

A token attends to all before it, so later ones take longer: one at position p takes a · (1 + g·p) seconds of the
processors. Of these a program gets a share, which changes whenever others begin or end. So the two are measured apart:
a and g over many steps, the share over the last seconds; no estimate can foresee what others will do. Before a prompt
begins, its cost is expected (`PromptCost`); with each step it becomes that of this prompt, the more certain it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

# Measured with prompts of 6,000 tokens of SmolLM2 135M: with one number of threads, steps differ by 3 % in processor
# time, whatever else runs. The engine tries other numbers for three or four steps; these take 30 % more processor
# time, for threads wait for each other by computing, and get the same share as before, or another one where programs
# are served by groups. Where it goes to and fro between numbers, a median of steps would, too.
_N_RECENT = 16  # steps whose mean is a token's processor time
_USUAL = 0.15  # by which a step may be off the others and still count for the growth
_SHARE_S = 8.0  # after so long a share of the processors counts 1/e; a trial of threads takes 4 to 6 s
_LEAST_SAMPLES = 3  # steps that a line is laid through
_MOST_STEPS = 128
_LEAST_STEP_TOKENS, _LEAST_STEP_S = 16, 0.1  # what is shorter says little about a token's time: it joins the next step
_EXPECTED_ERROR = 0.3  # of an expected slope, a share of it
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


@dataclass(frozen=True, slots=True)
class _Step:
    """The tokens from `begin` to `end`, the seconds that they took, and those of processors."""

    begin: int
    end: int
    taken_s: float
    used_s: float

    @property
    def n_tokens(self) -> int:
        return self.end - self.begin

    def joined(self, later: _Step) -> _Step:
        return _Step(self.begin, later.end, self.taken_s + later.taken_s, self.used_s + later.used_s)

    @property
    def is_short(self) -> bool:
        return self.n_tokens < _LEAST_STEP_TOKENS or self.taken_s < _LEAST_STEP_S


@dataclass(slots=True)
class PromptPace:
    """The pace of a prompt of `n_tokens`; the first `n_read` are there at `at_s`, when its computing begins. Where
    attention passes over the cells of other prompts too, `n_beside` of them count like tokens before it. Where it is
    known how long processors were busy with it, `busy_s` by then, its cost is seen through what other programs take.
    One thread observes; any may ask.
    """

    n_tokens: int
    n_read: int
    at_s: float
    expected: PromptCost = field(default_factory=PromptCost)
    n_beside: int = 0
    busy_s: float | None = None
    begun_s: float = field(init=False)
    cost: PromptCost = field(init=False)  # of a token, as the steps so far show it
    _n_last: int = 0  # tokens of the last step, and so of the one that is computed
    _steps: list[_Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun_s = self.at_s
        self.cost = self._cost()

    def observe(self, n_read: int, now_s: float, busy_s: float | None = None) -> None:
        """Note that `n_read` tokens are read now; fewer than before begin anew, as after a loss of the cache."""
        if n_read == self.n_read:
            return
        taken_s = now_s - self.at_s
        if n_read < self.n_read:
            self._steps.clear()
        elif taken_s > 0:
            used_s = taken_s if busy_s is None or self.busy_s is None else busy_s - self.busy_s
            step = _Step(self.n_read, n_read, taken_s, used_s)
            if self._steps and self._steps[-1].is_short:
                step = self._steps.pop().joined(step)
            self._steps.append(step)
            if len(self._steps) > _MOST_STEPS:  # a long prompt: the older ones are only good for the growth
                pairs = zip(self._steps[: _MOST_STEPS // 2 : 2], self._steps[1 : _MOST_STEPS // 2 : 2], strict=True)
                self._steps[: _MOST_STEPS // 2] = [one.joined(other) for one, other in pairs]
        self._n_last = max(0, n_read - self.n_read)
        self.n_read, self.at_s, self.busy_s = n_read, now_s, busy_s
        self.cost = self._cost()

    @property
    def next_token_s(self) -> float:
        """The seconds of the next token, 0 where nothing is known yet."""
        cost = self.cost
        return (cost.token_s or 0.0) * (1 + (cost.growth or 0.0) * (self.n_beside + self.n_read))

    @property
    def n_observed(self) -> int:
        """The tokens of the steps that its cost is taken from."""
        return sum(step.n_tokens for step in self._steps)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the prompt is read, None where nothing is known yet."""
        cost = self.cost
        if cost.token_s is None:
            return None
        left_s = cost.token_s * self._work(self.n_read, self.n_tokens, cost.growth or 0.0)
        # The time of the step that is computed passes; when it ends nobody knows, but the others come after it.
        others = min(self.n_read + self._n_last, self.n_tokens)
        others_s = cost.token_s * self._work(others, self.n_tokens, cost.growth or 0.0)
        return max(left_s - (now_s - self.at_s), others_s if self._n_last else 0.0, 0.05 * left_s)

    def _cost(self) -> PromptCost:
        growth = self._growth()
        if not self._steps:
            return PromptCost(self.expected.token_s, growth)
        work = [self._work(step.begin, step.end, growth) for step in self._steps]
        done = taken_s = used_s = 0.0  # of the last seconds
        for step, of_step in zip(self._steps, work, strict=True):
            kept = math.exp(-step.taken_s / _SHARE_S)
            done, taken_s, used_s = kept * done + of_step, kept * taken_s + step.taken_s, kept * used_s + step.used_s
        if self.busy_s is None or used_s <= 0:  # no clock of the processors, or a coarse one
            return PromptCost(taken_s / done, growth)
        first_used_s = sum(step.used_s for step in self._steps[-_N_RECENT:]) / sum(work[-_N_RECENT:])
        return PromptCost(first_used_s * taken_s / used_s, growth)

    def _growth(self) -> float:
        """Return the growth that a line through the usual steps has, and the expected one, each weighed by how certain
        it is: the inverse of its variance. Both are compared as slopes over the mean time of a token, which stay within
        bounds however steps scatter."""
        expected = self.expected.growth
        steps = [step for step in self._steps if not step.is_short]
        if len(steps) < _LEAST_SAMPLES:
            return expected or 0.0
        rates = [step.used_s / self._work(step.begin, step.end, self.cost.growth or 0.0) for step in steps]
        usual = median(rates)
        steps = [step for step, rate in zip(steps, rates, strict=True) if abs(rate - usual) <= _USUAL * usual]
        if len(steps) < _LEAST_SAMPLES or usual <= 0:  # a clock that is too coarse
            return expected or 0.0
        points = [
            (self.n_beside + (step.begin + step.end) / 2, step.used_s / step.n_tokens, step.n_tokens) for step in steps
        ]
        n_all = sum(n for _, _, n in points)
        middle = sum(at * n for at, _, n in points) / n_all
        mean_s = sum(token_s * n for _, token_s, n in points) / n_all
        spread = sum(n * (at - middle) ** 2 for at, _, n in points)
        slope = sum(n * (at - middle) * (token_s - mean_s) for at, token_s, n in points) / spread
        rest = sum(n * (token_s - mean_s - slope * (at - middle)) ** 2 for at, token_s, n in points)
        own_weight = 1 / max(math.sqrt(rest / (len(points) - 2) / spread) / mean_s, _LEAST_ERROR) ** 2
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
