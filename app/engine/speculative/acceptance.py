"""The acceptance rate of drafts, and the draft length that gives the most tokens a second. Pure.

Three estimates decide how many draft tokens to verify: the cost of a step of n tokens compared with one, the cost of
drafting itself, and how often drafts are accepted. Independent of where drafts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from operator import add, mul, truediv
from typing import NamedTuple

from app.engine.speculative.step_cost import MAX_DRAFT_TOKENS, StepCost
from app.engine.speculative.suffix_index import Draft

_NEGLIGIBLE_CHANCE = 0.02  # that all draft tokens so far are accepted
_DECAY = 0.97  # of the weight of earlier drafts with each new one
_PRIOR_WEIGHT = 4.0
_INITIAL_RATE = 0.8  # mean rate before any token was verified: high, so that every source is tried
_USE_DECAY = 0.95  # of the weight of earlier drafts, verified or not

ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of each token if those before it were accepted
LENGTHS = (1, 2, 3, 4, 7, 11, 15, 31)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for the tokens of a draft, in levels: `levels(draft)` has one for each token.

    `prior_rates` are the acceptance rates by level before any token was verified. With `weighs_chances` they are
    multiplied by the draft's own chances.
    """

    levels: Callable[[Draft], Iterable[int]]
    prior_rates: tuple[float, ...]
    weighs_chances: bool


def _match_levels(draft: Draft) -> Iterable[int]:
    """Return 0 for a match of 1 token, 1 for 2–3, 2 for 4–7 …: the i-th token continues it and i tokens more."""
    return chain(_LEVELS_BY_MATCH[draft.n_matched :], repeat(_LEVELS_BY_MATCH[-1]))


def _confidence_levels(draft: Draft) -> Iterable[int]:
    n_levels = len(CONFIDENCE.prior_rates)
    return (min(int(chance * n_levels), n_levels - 1) for chance in draft.chances)


# Of a lookup: the length of the text that occurred before. Of an edited text: how much of it came as expected.
# Of a draft model: its own confidence, from 0–1/6 to 5/6–1.
MATCH_LENGTH = Evidence(_match_levels, (0.05, 0.3, 0.7, 0.9, 0.95, 0.98), weighs_chances=True)
AGREEMENT = Evidence(_match_levels, (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), weighs_chances=False)
CONFIDENCE = Evidence(_confidence_levels, (0.2, 0.3, 0.5, 0.6, 0.75, 0.9), weighs_chances=False)
_LEVELS_BY_MATCH = tuple(max(n_matched, 1).bit_length() - 1 for n_matched in range(2 ** len(MATCH_LENGTH.prior_rates)))


class DraftEstimate(NamedTuple):
    """The expectation of a draft before it is made: the chance of each token and the cost of drafting one.

    `first` is an upper bound for the chance of the first token. `draft_cost` is that of a token and `pass_cost` that of
    a draft of any length, in units of a step of one token.
    """

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
        self._n_missed_probes = 0

    def observe(self, draft: Draft, n_drafted: int, n_accepted: int, *, is_probe: bool = False) -> None:
        """Count `n_accepted` of `n_drafted` tokens as accepted; those after a rejected one were not verified.

        A probe, which was only compared with the sample, tells of its level: the mean is that of drafts that paid.
        """
        n_verified = min(n_accepted + 1, n_drafted)
        self._n_missed_probes = 0 if n_accepted else self._n_missed_probes + is_probe
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
    def n_missed_probes(self) -> int:
        """How many probes were wrong since a token was last accepted."""
        return self._n_missed_probes

    @property
    def mean_rate(self) -> float:
        """The share of verified tokens that were accepted, at any level; optimistic before any was verified."""
        return self._n_accepted / self._n_verified

    @property
    def wasted_cost(self) -> float:
        """The cost of drafts in vain for each that was verified, in units of a step of one token.

        A source that drafts at every step, of which a share is verified, pays where the verified drafts pay for this.
        """
        return self._wasted_cost / self._n_used

    def upper_bound(self, n_matched: int, n_tokens: int) -> DraftEstimate:
        """Return the estimate for `n_tokens` after a match that always continued in the same way."""
        level = _LEVELS_BY_MATCH[min(n_matched, len(_LEVELS_BY_MATCH) - 1)]
        return DraftEstimate(self._best_chances(n_matched, n_tokens), self._accepted[level] / self._verified[level])

    def _best_chances(self, n_matched: int, n_tokens: int) -> Iterator[float]:
        yield from self.chances(Draft((), (1.0,) * n_tokens, n_matched))

    def chances(self, draft: Draft) -> Iterator[float]:
        """Return the chance of each token of `draft` to be accepted if those before it were."""
        rates = list(map(truediv, self._accepted, self._verified))
        by_level = map(rates.__getitem__, self._evidence.levels(draft))  # endless for a match
        return (
            map(mul, by_level, draft.chances) if self._evidence.weighs_chances else islice(by_level, len(draft.chances))
        )

    def copy(self) -> Acceptance:
        twin = Acceptance(self._evidence)
        twin._accepted, twin._verified = list(self._accepted), list(self._verified)
        twin._n_accepted, twin._n_verified = self._n_accepted, self._n_verified
        twin._wasted_cost, twin._n_used = self._wasted_cost, self._n_used
        twin._n_missed_probes = self._n_missed_probes
        return twin


class Rejection(NamedTuple):
    """What the rejection of a draft costs in an answer that has `n_known` tokens in the step.

    The last `n_free` tokens can be removed at once. Of a draft that loses more, the known and the accepted tokens are
    computed again in the next step. With `is_split` a batch is computed in parts, each of sequences with equally many
    tokens (states), so the tokens of other answers cost a part of their own.
    """

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
) -> DraftLength:
    """Return the length with the most expected tokens for its cost, 0 if no draft is better.

    `chances` are those of at most MAX_DRAFT_TOKENS tokens, of each if the ones before it are accepted. The step has
    `n_step` tokens for `n_answers` answers without this draft. `draft_cost` is the cost of drafting a token and
    `pass_cost` that of drafting at all, in units of a step of one token; `is_lasting`: its source drafts at every step.
    """
    costs = _verify_costs(cost, n_step, n_answers, rejection, is_lasting=is_lasting)
    speed_without = n_answers / next(costs)
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
        if speed > best_speed:
            best_length, best_speed = n_tokens, speed
    return DraftLength(best_length, best_speed / speed_without)


def _verify_costs(
    cost: StepCost, n_step: int, n_answers: int, rejection: Rejection, *, is_lasting: bool
) -> Iterator[float]:
    """Return the costs of a step of `n_step` tokens and of those with 1 … MAX_DRAFT_TOKENS more for one answer."""
    n_beside = n_step - rejection.n_known
    if not rejection.is_split or n_beside <= 0:
        return cost.ratios_from(n_step, n_answers, is_lasting=is_lasting)
    own = islice(cost.ratios_from(rejection.n_known, is_lasting=is_lasting), 1, None)
    beside = cost.ratio(n_beside, max(1, n_answers - 1))
    return chain(islice(cost.ratios_from(n_step, n_answers), 1), map(add, own, repeat(beside)))


def _repeat_costs(cost: StepCost, n_step: int, n_answers: int, rejection: Rejection) -> Iterator[float]:
    """Yield what the next step costs more after a draft of which 0, 1 … tokens were accepted and all were removed."""
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
    """Return the gains of drafts for one answer, by acceptance rate; finding a draft takes no time.

    A draft of n tokens makes a step of n + 1.
    """
    found = []
    for acceptance in ACCEPTANCES:
        best = best_draft_length(repeat(acceptance, MAX_DRAFT_TOKENS), cost, n_step=1, n_answers=1)
        gains = {}
        for length in LENGTHS:
            n_expected = sum(acceptance**n_accepted for n_accepted in range(length + 1))  # the first is the model's own
            gains[length] = n_expected * cost.ratio(1) / cost.ratio(1 + length)
        found.append(DraftGain(acceptance, gains, best.n_tokens, best.gain))
    return tuple(found)
