"""How many draft tokens to verify: as many as give the most tokens a second, and none when none pays. Pure.

Three estimates decide: what a batch of n tokens costs here compared with one, what drafting itself costs, and how often
drafts are taken. Knows nothing of where drafts come from.

What drafts gain, by how often their tokens are taken and how long they are, where steps cost what they do. Pure.

Owns the table. Knows nothing of where drafts come from; looking them up takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from operator import mul, truediv
from typing import NamedTuple

from app.engine.speculative.step_cost import MAX_DRAFT_TOKENS, StepCost
from app.engine.speculative.suffix_index import Draft

__all__ = [
    "ACCEPTANCES",
    "CONFIDENCE",
    "LENGTHS",
    "MATCH_LENGTH",
    "NO_ESTIMATE",
    "Acceptance",
    "DraftEstimate",
    "DraftGain",
    "DraftLength",
    "Evidence",
    "best_draft_length",
    "draft_gains",
]

_NEGLIGIBLE_CHANCE = 0.02  # of all draft tokens so far being taken
_FORGETTING = 0.97  # of earlier drafts' weight with each new one
_PRIOR_WEIGHT = 4.0
_INITIAL_RATE = 0.8  # the mean rate before any token was tried: a model that nobody asks is never learned about


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a draft's tokens, in levels: `levels(draft)` has one for each of them.

    `prior_rates` are how often tokens of each level are taken before any was tried. With `weighs_chances` a draft's own
    chances count on top of that.
    """

    levels: Callable[[Draft], Iterable[int]]
    prior_rates: tuple[float, ...]
    weighs_chances: bool


def _match_levels(draft: Draft) -> Iterable[int]:
    """Return 0 for a match of 1 token, 1 for 2–3, 2 for 4–7 …: the i-th token goes on from it and i tokens more."""
    return chain(_LEVELS_BY_MATCH[draft.n_matched :], repeat(_LEVELS_BY_MATCH[-1]))


def _confidence_levels(draft: Draft) -> Iterable[int]:
    n_levels = len(CONFIDENCE.prior_rates)
    return (min(int(chance * n_levels), n_levels - 1) for chance in draft.chances)


# Of a lookup: how long the text is that occurred before. Of a text that is followed through changes: how much of it
# came as expected. Of a model: how sure it is itself, from 0–1/6 to 5/6–1.
MATCH_LENGTH = Evidence(_match_levels, (0.05, 0.3, 0.7, 0.9, 0.95, 0.98), weighs_chances=True)
AGREEMENT = Evidence(_match_levels, (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), weighs_chances=False)
CONFIDENCE = Evidence(_confidence_levels, (0.2, 0.3, 0.5, 0.6, 0.75, 0.9), weighs_chances=False)
_LEVELS_BY_MATCH = tuple(max(n_matched, 1).bit_length() - 1 for n_matched in range(2 ** len(MATCH_LENGTH.prior_rates)))


class DraftEstimate(NamedTuple):
    """What may be expected of a draft before it is asked for: the chance of each token, and what drafting it costs.

    `first` is the most that the chance of the first token can be; `draft_cost` is per token, in units of a step of one
    token.
    """

    chances: Iterable[float]
    first: float
    draft_cost: float = 0.0


NO_ESTIMATE = DraftEstimate((), 0.0)


class Acceptance:
    """How often draft tokens were taken, by level of evidence; older ones count less."""

    def __init__(self, evidence: Evidence = MATCH_LENGTH) -> None:
        self._evidence = evidence
        self._taken = [rate * _PRIOR_WEIGHT for rate in evidence.prior_rates]
        self._tried = [_PRIOR_WEIGHT] * len(evidence.prior_rates)
        self._n_taken, self._n_tried = _INITIAL_RATE * _PRIOR_WEIGHT, _PRIOR_WEIGHT

    def observe(self, draft: Draft, n_drafted: int, n_accepted: int) -> None:
        """Learn that `n_accepted` of `n_drafted` tokens were taken; those behind a refused one were not tried."""
        n_tried = min(n_accepted + 1, n_drafted)
        for index, level in enumerate(islice(self._evidence.levels(draft), n_tried)):
            is_taken = index < n_accepted
            self._taken[level] = self._taken[level] * _FORGETTING + is_taken
            self._tried[level] = self._tried[level] * _FORGETTING + 1
            self._n_taken = self._n_taken * _FORGETTING + is_taken
            self._n_tried = self._n_tried * _FORGETTING + 1

    @property
    def mean_rate(self) -> float:
        """The share of tried tokens that were taken, whatever spoke for them; hopeful before any was tried."""
        return self._n_taken / self._n_tried

    def upper_bound(self, n_matched: int, n_tokens: int) -> DraftEstimate:
        """Return what `n_tokens` behind a match would be worth that never went on in another way."""
        level = _LEVELS_BY_MATCH[min(n_matched, len(_LEVELS_BY_MATCH) - 1)]
        return DraftEstimate(self._surest_chances(n_matched, n_tokens), self._taken[level] / self._tried[level])

    def _surest_chances(self, n_matched: int, n_tokens: int) -> Iterator[float]:
        yield from self.chances(Draft((), (1.0,) * n_tokens, n_matched))

    def chances(self, draft: Draft) -> Iterator[float]:
        """Return how likely each token of `draft` is to be taken where those before it were."""
        rates = list(map(truediv, self._taken, self._tried))
        likely = map(rates.__getitem__, self._evidence.levels(draft))  # endless for a match
        return map(mul, likely, draft.chances) if self._evidence.weighs_chances else islice(likely, len(draft.chances))

    def copy(self) -> Acceptance:
        twin = Acceptance(self._evidence)
        twin._taken, twin._tried = list(self._taken), list(self._tried)
        twin._n_taken, twin._n_tried = self._n_taken, self._n_tried
        return twin


@dataclass(frozen=True, slots=True)
class DraftLength:
    """How many tokens of a draft to verify, and how many times as many tokens a second come of it as without."""

    n_tokens: int
    gain: float


def best_draft_length(
    chances: Iterable[float], cost: StepCost, n_step: int, n_answers: int, draft_cost: float = 0.0
) -> DraftLength:
    """Return the length with the most expected tokens for its cost, 0 where none beats going without.

    `chances` are those of at most MAX_DRAFT_TOKENS tokens, of each where the ones before it are taken. The step has
    `n_step` tokens for `n_answers` answers without this draft. `draft_cost` is what drafting a token costs, in units of
    a step of one token.
    """
    costs = cost.ratios_from(n_step)
    without = n_answers / next(costs)
    best_length, best_speed = 0, without
    n_expected, chance_so_far = float(n_answers), 1.0
    for n_tokens, (chance, ratio) in enumerate(zip(chances, costs, strict=False), start=1):
        chance_so_far *= chance
        if chance_so_far < _NEGLIGIBLE_CHANCE:
            break
        n_expected += chance_so_far
        speed = n_expected / (ratio + draft_cost * n_tokens)
        if speed > best_speed:
            best_length, best_speed = n_tokens, speed
    return DraftLength(best_length, best_speed / without)


ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of each token where those before it were taken
LENGTHS = (1, 2, 3, 4, 7, 11, 15, 31)


@dataclass(frozen=True, slots=True)
class DraftGain:
    """Times as many tokens a second as without drafts, by tokens of a draft. `best_length` 0: none of them pays."""

    acceptance: float
    gains: Mapping[int, float]
    best_length: int
    best_gain: float


def draft_gains(cost: StepCost) -> tuple[DraftGain, ...]:
    """Return what drafts gain for one answer, by acceptance. A draft of n tokens makes a step of n + 1."""
    return tuple(_gains(acceptance, cost) for acceptance in ACCEPTANCES)


def _gains(acceptance: float, cost: StepCost) -> DraftGain:
    best = best_draft_length(repeat(acceptance, MAX_DRAFT_TOKENS), cost, n_step=1, n_answers=1)
    gains = {length: _gain(acceptance, length, cost) for length in LENGTHS}
    return DraftGain(acceptance, gains, best.n_tokens, best.gain)


def _gain(acceptance: float, length: int, cost: StepCost) -> float:
    n_expected = sum(acceptance**n_taken for n_taken in range(length + 1))  # the first is the model's own
    return n_expected * cost.ratio(1) / cost.ratio(1 + length)
