"""When a draft pays. Pure.

Three estimates decide how many draft tokens to verify: the time of a step of n tokens over that of one (`StepCost`,
measured as steps run), the cost of drafting itself, and how often drafts are accepted (`Acceptance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat
from math import inf, log2
from operator import add, mul, truediv
from typing import NamedTuple

import numpy as np

from app.engine.speculative.suffix_index import Draft
from offload.speed.step_costs import CPU_COST_RATIOS

MAX_DRAFT_TOKENS = 63  # of all answers together: no next token waits for more

_OBSERVATION_WEIGHT = 0.2
# Of the first steps of a size, of which only an expectation is known: it was seen to be half of what they took.
_FIRST_WEIGHTS = (0.4, 0.33, 0.25)
_MOST_SURPRISE = 2.0  # times the known cost, as which a step counts at most: a longer one was held up
_ALIKE = 2.0  # a size tells of others, less the further they are, up to so many doublings
N_SETTLING = 2  # steps after a change of size that compute no faster for being alike: a graph is built, then captured
_N_LASTING = 8  # steps that share the cost of a change, where a source drafts at every step


def moving_average(known: float | None, observed: float) -> float:
    """Return what is known after one more observation, the observation itself if it is the first."""
    return observed if known is None else known + _OBSERVATION_WEIGHT * (observed - known)


class _Measured(NamedTuple):
    """What was measured of steps that so many threads compute."""

    ratios: dict[int, float]
    counts: dict[int, int]
    copied: dict[int, float]
    copied_counts: dict[int, int]
    single_s: float | None
    per_answer: float


@dataclass(slots=True)
class StepCost:
    """The cost of a step in units of a step of one token; measured as steps run.

    `ratios` are those of one answer by number of tokens, `counts` how many steps of a size were measured. Each further
    answer in the step adds `per_answer`, for states and caches of its own: as part of the ratios it would make 8
    answers dearer than a step of 7 and one of 2. `copied` are those of the sizes that compute with copies of slow
    weights, while these are there.

    `size_change` is what a step between others of another size costs more than among its like, the steps after it
    included: GPUs repeat a captured graph, and one of another size is built and captured anew. 0 without such.
    """

    ratios: dict[int, float] = field(default_factory=lambda: dict(CPU_COST_RATIOS))
    single_s: float | None = None
    per_answer: float = 0.0
    size_change: float = 0.0
    n_threads: int = 0  # that compute the steps; 0 where nobody changes them
    counts: dict[int, int] = field(default_factory=dict)
    copied: dict[int, float] = field(default_factory=dict)
    _copied_counts: dict[int, int] = field(default_factory=dict)
    _has_copies: bool = False
    _by_threads: dict[int, _Measured] = field(default_factory=dict)
    _n_last: int = 1  # tokens of the last step
    _n_alike: int = 0  # steps of that size since the one of another
    _cached_ratios: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # since the last observation
    _cached_chances: dict[tuple[int, int, int, bool], float] = field(default_factory=dict)  # and `min_first_chance`

    @classmethod
    def from_measured(
        cls,
        measured: Mapping[int, float],
        size_change: float = 0.0,
        expected: Mapping[int, float] | None = None,
        copied: Mapping[int, float] | None = None,
    ) -> StepCost:
        """Return costs that equal the `measured` ones, and scale the `expected` ones, by default the usual, between."""
        usual, copies = expected or CPU_COST_RATIOS, dict(copied or {})
        if not measured:
            return cls(dict(usual), size_change=size_change, copied=copies)
        scales = map(truediv, measured.values(), _at(usual, list(measured)))
        by_size = dict(zip(measured, scales, strict=True))
        scaled = map(mul, usual.values(), _at(by_size, list(usual)))
        ratios = {**dict(zip(usual, scaled, strict=True)), **measured}
        counts = dict.fromkeys(measured, len(_FIRST_WEIGHTS))
        return cls(ratios, size_change=size_change, counts=counts, copied=copies)

    @property
    def measured(self) -> dict[int, float]:
        """The ratios of the sizes that were measured, with the model's own weights."""
        return {n_tokens: self.ratios[n_tokens] for n_tokens in sorted(self.counts)}

    def use_threads(self, n_threads: int) -> None:
        """Continue with the costs of steps that `n_threads` compute: what was measured with as many before, else the
        present ratios, without a time. Threads speed up a step of one token by another factor than one of many."""
        if self.n_threads:
            ratios, copied = (self.ratios, self.counts), (self.copied, self._copied_counts)
            self._by_threads[self.n_threads] = _Measured(*ratios, *copied, self.single_s, self.per_answer)
        self.n_threads = n_threads
        if n_threads in self._by_threads:
            found = self._by_threads[n_threads]
            self.ratios, self.counts, self.copied, self._copied_counts, self.single_s, self.per_answer = found
        elif self._by_threads:
            self.ratios, self.counts, self.single_s = dict(self.ratios), {}, None
            self.copied, self._copied_counts = dict(self.copied), {}
        self._forget_cached()

    def use_copies(self, *, are_there: bool) -> None:
        """Let the costs be those of steps while the copies of slow weights are there, or are not."""
        if are_there != self._has_copies:
            self._has_copies = are_there
            self._forget_cached()

    def _forget_cached(self) -> None:
        self._cached_ratios, self._cached_chances = {}, {}

    def observe(self, n_tokens: int, duration_s: float, n_answers: int = 1) -> None:
        """Count a step of `n_tokens` of `n_answers`. Steps before the first of one token are ignored, and of 0 s; and
        where a change of size costs, those that pay for it."""
        self._n_alike = self._n_alike + 1 if n_tokens == self._n_last else 1
        self._n_last = n_tokens
        if duration_s <= 0.0:  # too short for a coarse clock
            return
        if self.size_change and self._n_alike <= N_SETTLING:
            return
        if n_tokens == 1:
            self.single_s = moving_average(self.single_s, duration_s)
        elif self.single_s:  # 0.0 where the clock is coarser than a step
            observed = min(duration_s / self.single_s, _MOST_SURPRISE * self.ratio(n_tokens, n_answers))
            known = self.ratio(n_tokens)
            excess = observed - known
            if n_answers > 1:
                self.per_answer = max(0.0, moving_average(self.per_answer, excess / (n_answers - 1)))
            if n_answers == 1 or excess < 0.0:  # one answer costs no more than several
                self._learn(n_tokens, known, observed)
            self._forget_cached()

    def _learn(self, n_tokens: int, known: float, observed: float) -> None:
        """Count `observed` for steps of `n_tokens`, and for those of other sizes that were never measured: else each
        size of draft would have to fail by itself."""
        uses_copies = self._has_copies and self.copied and n_tokens >= min(self.copied)
        ratios, counts = (self.copied, self._copied_counts) if uses_copies else (self.ratios, self.counts)
        n_before = counts.get(n_tokens, 0)
        weight = _FIRST_WEIGHTS[n_before] if n_before < len(_FIRST_WEIGHTS) else _OBSERVATION_WEIGHT
        counts[n_tokens] = n_before + 1
        ratios[n_tokens] = known + weight * (observed - known)
        change = ratios[n_tokens] / known
        for other in ratios.keys() - counts.keys() - {1}:
            share = max(0.0, 1 - abs(log2(other / n_tokens)) / _ALIKE)
            ratios[other] *= change**share

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        """Return the cost of a step of `n_tokens`: linear between known sizes, proportional beyond the largest."""
        return self._base_ratios(n_tokens, n_answers)[0]

    def ratios_from(self, n_step: int, n_answers: int = 1, *, is_lasting: bool = False) -> Iterator[float]:
        """Return the costs of a step of `n_step` tokens of `n_answers`, and with 1 … MAX_DRAFT_TOKENS more. Those have
        the cost of a change if they differ from the last step, a part of it where drafts are to be lasting."""
        known = self._base_ratios(n_step, n_answers)
        if not self.size_change:
            return iter(known)
        plain, *more = known
        change = self.size_change / (_N_LASTING if is_lasting and self._n_last == n_step else 1)
        changes = (0.0 if n_tokens == self._n_last else change for n_tokens in count(n_step + 1))
        return chain((plain,), map(add, more, changes))

    def _base_ratios(self, n_step: int, n_answers: int) -> list[float]:
        """Return the costs among steps of the same size."""
        known = self._cached_ratios.get((n_step, n_answers))
        if known is None:
            ratios = self.ratios
            if self._has_copies and self.copied:
                copy_from = min(self.copied)
                ratios = {n: ratio for n, ratio in ratios.items() if n < copy_from} | self.copied
            sizes, n_largest = range(n_step, n_step + MAX_DRAFT_TOKENS + 1), max(ratios)
            beyond = (max(1.0, n_tokens / n_largest) for n_tokens in sizes)
            of_others = repeat((n_answers - 1) * self.per_answer)
            known = list(map(add, map(mul, _at(ratios, sizes), beyond), of_others))
            self._cached_ratios[n_step, n_answers] = known
        return known

    def min_first_chance(self, n_step: int, n_answers: int, *, is_lasting: bool = False) -> float:
        """Return a chance of the first token at or below which no draft pays in a step of `n_step` tokens. Even if all
        later tokens are certain, a draft of n gives at most n times the chance of its first."""
        key = n_step, n_answers, self._n_last if self.size_change else 0, is_lasting
        chance = self._cached_chances.get(key)
        if chance is None:
            without, *costs = self.ratios_from(n_step, n_answers, is_lasting=is_lasting)
            added = (n_answers * (cost / without - 1) / n_tokens for n_tokens, cost in enumerate(costs, start=1))
            chance = self._cached_chances[key] = min(added)
        return chance

    def saved_steps(self, n_step: int, n_answers: int, n_drafted: int, n_accepted: int, n_repeated: int = 0) -> float:
        """Return the steps of one token that a draft saved in a step of `n_step` tokens without it, negative if it cost
        time. Each accepted token saves a step without drafts; the draft made its own step as long as steps of that size
        were measured to be, and the next one longer by `n_repeated` tokens."""
        plain = self.ratio(n_step, n_answers)
        drafted = next(islice(self.ratios_from(n_step, n_answers), n_drafted, None))
        added = drafted + self.ratio(n_step + n_repeated, n_answers) - 2 * plain
        return n_accepted * plain - added

    def saved_s(self, n_step: int, n_answers: int, n_drafted: int, n_accepted: int, n_repeated: int = 0) -> float:
        """Return `saved_steps` in seconds, 0 before the first step of one token."""
        return (self.single_s or 0.0) * self.saved_steps(n_step, n_answers, n_drafted, n_accepted, n_repeated)


def _at(points: Mapping[int, float], sizes: Many[int]) -> list[float]:
    """Return the values at `sizes`, linear between known points and constant beyond them."""
    known = sorted(points)
    values: list[float] = np.interp(sizes, known, [points[n_tokens] for n_tokens in known]).tolist()
    return values


_NEGLIGIBLE_CHANCE = 0.02  # that all draft tokens so far are accepted: longer drafts are not looked at
_DECAY = 0.97  # of the weight of earlier drafts with each new one: text changes between copying and new words
_PRIOR_WEIGHT = 4.0
_INITIAL_RATE = 0.8  # mean rate before any token was verified: high, so that every source is tried
_USE_DECAY = 0.95  # of the weight of earlier drafts, verified or not

# How many steps of one token the drafts of an answer may cost before they gained any, and for each of its tokens. Each
# failed draft teaches something, but an answer that repeats nothing must not pay for many lessons: greedy text of
# SmolLM2 in Q4_1 lost up to 25 % by drafts of 31 tokens (7 to 15 steps each) after half a line that had been there.
_FIRST_RISK, _RISK_PER_TOKEN = 1.5, 0.01
_RISKED_SHARE = 0.5  # of what drafts gained in the answer
# A token that was expected and not drafted costs nothing and shows as much: it would have gained or lost half a step.
_PROBE_STEPS, _LEAST_PROBED, _MOST_PROBED = 0.5, -2.0, 6.0


@dataclass(slots=True)
class DraftLedger:
    """What verifying drafts gained or cost in one answer, in steps of one token, and so how much the next one may cost
    in vain. Drafts begin short and become longer as they are accepted, or as probes show that they would be; where they
    never are, they cost an answer 1.5 steps and a hundredth."""

    saved_steps: float = 0.0
    _probed_steps: float = 0.0

    def observe_probe(self, *, is_accepted: bool) -> None:
        change = _PROBE_STEPS if is_accepted else -_PROBE_STEPS
        self._probed_steps = max(_LEAST_PROBED, min(_MOST_PROBED, self._probed_steps + change))

    def max_loss(self, n_output: int) -> float:
        """Return how many steps a draft may cost if none of its tokens are accepted, after `n_output` tokens."""
        share = _RISKED_SHARE if self.saved_steps > 0.0 else 1.0
        own = _FIRST_RISK + _RISK_PER_TOKEN * n_output + share * self.saved_steps
        return own + max(0.0, self._probed_steps)


ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of each token if those before it were accepted
LENGTHS = (1, 2, 3, 4, 7, 11, 15, 31)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for the tokens of a draft, in levels: `levels(draft)` has one for each token. `prior_rates` are the
    acceptance rates by level before any token was verified. With `weighs_chances` they are multiplied by the draft's
    own chances. An answer begins with the rates of earlier ones, which weigh at most as `n_carried` tokens."""

    levels: Callable[[Draft], Iterable[int]]
    prior_rates: tuple[float, ...]
    weighs_chances: bool
    n_carried: float


def _match_levels(draft: Draft) -> Iterable[int]:
    """Return 0 for a match of 1 token, 1 for 2–3, 2 for 4–7 …: the i-th token continues it and i tokens more."""
    return chain(_LEVELS_BY_MATCH[draft.n_matched :], repeat(_LEVELS_BY_MATCH[-1]))


def _confidence_levels(draft: Draft) -> Iterable[int]:
    n_levels = len(CONFIDENCE.prior_rates)
    return (min(int(chance * n_levels), n_levels - 1) for chance in draft.chances)


# Of a lookup: the length of the text that occurred before. Of an edited text: how much of it came as expected.
# Of a draft model: its own confidence, from 0–1/6 to 5/6–1.
# What repeats depends on the answer: after some edits new text was taken for one until thirty drafts had failed.
# That cost 3 % of its time (SmolLM2's steps), and costs 1 % with what three tokens weigh. A model's confidence is the
# same in any text.
_N_CARRIED = 3.0
MATCH_LENGTH = Evidence(_match_levels, (0.05, 0.3, 0.7, 0.9, 0.95, 0.98), weighs_chances=True, n_carried=_N_CARRIED)
# What other texts have in common by chance is longer than what a text has with itself: of ends of 4 to 7 tokens that a
# corpus of 250,000 has, 0.25 to 0.55 went on as there, of those of 8 to 15 0.6 to 0.8.
CORPUS_MATCH_LENGTH = Evidence(
    _match_levels, (0.05, 0.15, 0.4, 0.7, 0.9, 0.95), weighs_chances=True, n_carried=_N_CARRIED
)
AGREEMENT = Evidence(_match_levels, (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), weighs_chances=False, n_carried=_N_CARRIED)
CONFIDENCE = Evidence(_confidence_levels, (0.2, 0.3, 0.5, 0.6, 0.75, 0.9), weighs_chances=False, n_carried=inf)
_LEVELS_BY_MATCH = tuple(max(n_matched, 1).bit_length() - 1 for n_matched in range(2 ** len(MATCH_LENGTH.prior_rates)))


class DraftEstimate(NamedTuple):
    """The expectation of a draft before it is made: the chance of each token and the cost of drafting one. `first` is
    an upper bound for the chance of the first token. `draft_cost` is that of a token and `pass_cost` that of a draft of
    any length, in units of a step of one token."""

    chances: Iterable[float]
    first: float
    draft_cost: float = 0.0
    pass_cost: float = 0.0


NO_ESTIMATE = DraftEstimate((), 0.0)


class Acceptance:
    """The acceptance rate of draft tokens by level of evidence, and what drafts cost that were not verified; older ones
    count less."""

    def __init__(self, evidence: Evidence = MATCH_LENGTH) -> None:
        self._evidence = evidence
        self._accepted = [rate * _PRIOR_WEIGHT for rate in evidence.prior_rates]
        self._verified = [_PRIOR_WEIGHT] * len(evidence.prior_rates)
        self._n_accepted, self._n_verified = _INITIAL_RATE * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._wasted_cost, self._n_used = 0.0, _PRIOR_WEIGHT
        self.n_missed_probes = 0  # since a token was last accepted

    def observe(self, draft: Draft, n_drafted: int, n_accepted: int, *, is_probe: bool = False) -> None:
        """Count `n_accepted` of `n_drafted` tokens as accepted; those after a rejected one were not verified. A probe,
        which was only compared with the sample, tells of its level: the mean is that of drafts that paid."""
        n_verified = min(n_accepted + 1, n_drafted)
        self.n_missed_probes = 0 if n_accepted else self.n_missed_probes + is_probe
        for index, level in enumerate(islice(self._evidence.levels(draft), n_verified)):
            is_accepted = index < n_accepted
            self._accepted[level] = self._accepted[level] * _DECAY + is_accepted
            self._verified[level] = self._verified[level] * _DECAY + 1
            if not is_probe:
                self._n_accepted = self._n_accepted * _DECAY + is_accepted
                self._n_verified = self._n_verified * _DECAY + 1

    def observe_use(self, cost: float, *, is_verified: bool) -> None:
        """Count a draft that was made at `cost`, in units of a step of one token, and then verified or not."""
        self._wasted_cost = self._wasted_cost * _USE_DECAY + (0.0 if is_verified else cost)
        self._n_used = self._n_used * _USE_DECAY + is_verified

    @property
    def mean_rate(self) -> float:
        """The share of verified tokens that were accepted, at any level; optimistic before any was verified."""
        return self._n_accepted / self._n_verified

    @property
    def wasted_cost(self) -> float:
        """The cost of drafts in vain for each that was verified, in units of a step of one token. A source that drafts
        at every step, of which a share is verified, pays where the verified drafts pay for this."""
        return self._wasted_cost / self._n_used

    def upper_bound(self, n_matched: int, n_tokens: int) -> DraftEstimate:
        """Return the estimate for `n_tokens` after a match that always continued in the same way."""
        level = _LEVELS_BY_MATCH[min(n_matched, len(_LEVELS_BY_MATCH) - 1)]
        return DraftEstimate(self._best_chances(n_matched, n_tokens), self._accepted[level] / self._verified[level])

    def _best_chances(self, n_matched: int, n_tokens: int) -> Iterator[float]:
        # A generator, since most estimates are dropped by their first chance alone: walking 120 chances for each token
        # of an answer took longer than a step of a small model.
        yield from self.chances(Draft((), (1.0,) * n_tokens, n_matched))

    def chances(self, draft: Draft) -> Iterator[float]:
        """Return the chance of each token of `draft` to be accepted if those before it were."""
        rates = list(map(truediv, self._accepted, self._verified))
        by_level = map(rates.__getitem__, self._evidence.levels(draft))  # endless for a match
        if self._evidence.weighs_chances:
            return map(mul, by_level, draft.chances)
        return islice(by_level, len(draft.chances))

    def for_next_answer(self) -> Acceptance:
        """Return the acceptance that another answer begins with."""
        twin = Acceptance(self._evidence)
        shares = [min(1.0, self._evidence.n_carried / verified) for verified in self._verified]
        twin._accepted, twin._verified = list(map(mul, self._accepted, shares)), list(map(mul, self._verified, shares))
        twin._n_accepted, twin._n_verified = self._n_accepted, self._n_verified
        twin._wasted_cost, twin._n_used = self._wasted_cost, self._n_used
        twin.n_missed_probes = self.n_missed_probes
        return twin


class Rejection(NamedTuple):
    """What the rejection of a draft costs in an answer that has `n_known` tokens in the step. The last `n_free` tokens
    can be removed at once. Of a draft that loses more, the known and the accepted tokens are computed again in the next
    step. With `is_split` a batch is computed in parts, each of sequences with equally many tokens (states), so the
    tokens of other answers cost a part of their own."""

    n_free: int = MAX_DRAFT_TOKENS
    n_known: int = 1
    is_split: bool = False


FREE_REJECTION = Rejection()


@dataclass(frozen=True, slots=True)
class DraftLength:
    """The number of draft tokens to verify, and their gain: how many times as many tokens a second as without."""

    n_tokens: int
    gain: float


def best_draft_length(
    chances: Iterable[float],
    cost: StepCost,
    n_step: int,
    n_answers: int,
    draft_cost: float = 0.0,
    rejection: Rejection = FREE_REJECTION,
    pass_cost: float = 0.0,
    *,
    is_lasting: bool = False,
    max_loss: float = inf,
) -> DraftLength:
    """Return the length with the most expected tokens for its cost, 0 if no draft is better. One that would cost more
    than `max_loss` if none of its tokens were accepted is not taken. `chances` are those of at
    most MAX_DRAFT_TOKENS tokens, of each if the ones before it are accepted. The step has `n_step` tokens for
    `n_answers` answers without this draft. `draft_cost` is the cost of drafting a token and `pass_cost` that of
    drafting at all, in units of a step of one token; `is_lasting`: its source drafts at every step."""
    costs = _verify_costs(cost, n_step, n_answers, rejection, is_lasting=is_lasting)
    speed_without = n_answers / (cost_without := next(costs))
    best_length, best_speed = 0, speed_without
    n_expected, chance_so_far, expected_repeat = float(n_answers), 1.0, 0.0
    repeats = _repeat_costs(cost, n_step, n_answers, rejection)
    ends: list[float] = []  # the chance that a draft ends before its i-th token
    for n_tokens, (chance, ratio) in enumerate(zip(chances, costs, strict=False), start=1):
        ends.append(chance_so_far * (1.0 - chance))
        chance_so_far *= chance
        if chance_so_far < _NEGLIGIBLE_CHANCE:
            break
        n_expected += chance_so_far
        if (n_kept := n_tokens - 1 - rejection.n_free) >= 0:
            expected_repeat += ends[n_kept] * next(repeats)
        speed = n_expected / (ratio + pass_cost + draft_cost * n_tokens + expected_repeat)
        if speed > best_speed and ratio - cost_without + pass_cost + draft_cost * n_tokens <= max_loss:
            best_length, best_speed = n_tokens, speed
    return DraftLength(best_length, best_speed / speed_without)


def _verify_costs(
    cost: StepCost, n_step: int, n_answers: int, rejection: Rejection, *, is_lasting: bool
) -> Iterator[float]:
    """Return the costs of a step of `n_step` tokens and of those with 1 … MAX_DRAFT_TOKENS more for one answer."""
    # Where a batch is computed in parts, this answer with its draft is one and the others are another.
    n_beside = n_step - rejection.n_known
    if not rejection.is_split or n_beside <= 0:
        return cost.ratios_from(n_step, n_answers, is_lasting=is_lasting)
    own = islice(cost.ratios_from(rejection.n_known, is_lasting=is_lasting), 1, None)
    beside = cost.ratio(n_beside, max(1, n_answers - 1))
    return chain(islice(cost.ratios_from(n_step, n_answers), 1), map(add, own, repeat(beside)))


def _repeat_costs(cost: StepCost, n_step: int, n_answers: int, rejection: Rejection) -> Iterator[float]:
    """Yield what the next step costs more after a draft of which 0, 1 … tokens were accepted and all were removed. A
    generator: it computes nothing where a rejection is free."""
    _, *costs = cost.ratios_from(n_step, n_answers)
    plain = cost.ratio(n_step - rejection.n_known + 1, n_answers)
    for ratio in costs:
        yield max(0.0, ratio - plain)


@dataclass(frozen=True, slots=True)
class DraftGain:
    """The gain in tokens a second over no drafts, by length of a draft. `best_length` 0: no draft pays."""

    acceptance: float
    gains: Mapping[int, float]
    best_length: int
    best_gain: float


def draft_gains(cost: StepCost) -> tuple[DraftGain, ...]:
    """Return the gains of drafts for one answer, by acceptance rate; finding a draft takes no time. A draft of n tokens
    makes a step of n + 1."""
    found = []
    for acceptance in ACCEPTANCES:
        best = best_draft_length(repeat(acceptance, MAX_DRAFT_TOKENS), cost, n_step=1, n_answers=1)
        gains = {}
        for length in LENGTHS:
            n_expected = sum(acceptance**n_accepted for n_accepted in range(length + 1))  # the first is the model's own
            gains[length] = n_expected * cost.ratio(1) / cost.ratio(1 + length)
        found.append(DraftGain(acceptance, gains, best.n_tokens, best.gain))
    return tuple(found)
