"""How many draft tokens to verify: as many as give the most tokens a second, and none when none pays. Pure.

Two estimates decide: what a batch of n tokens costs here compared with one, and how often drafts are taken. Knows
nothing of where drafts come from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine.draft import Draft

__all__ = ["Acceptance", "StepCost", "can_pay", "draft_length"]

# Time of a batch of n tokens over that of one. Measured with a 1.24B Q4_K_M on 2 AVX-512 cores, flash attention off.
CPU_COST_RATIOS: dict[int, float] = {1: 1.0, 2: 1.65, 4: 1.95, 8: 3.4, 16: 4.15, 32: 7.0}
_OBSERVATION_WEIGHT = 0.2
_NEGLIGIBLE_CHANCE = 0.02  # of all draft tokens so far being taken
_FORGETTING = 0.97  # of earlier drafts' weight with each new one

# Before anything is known: how often a draft token is taken, by the length of the matched suffix up to 1, 3, 7, 15 ...
_PRIOR_RATES = (0.05, 0.2, 0.5, 0.75, 0.9, 0.95)
_PRIOR_WEIGHT = 4.0


@dataclass(slots=True)
class StepCost:
    """What a step costs by its number of tokens, in units of a step of one token; measured as steps go by."""

    ratios: dict[int, float] = field(default_factory=lambda: dict(CPU_COST_RATIOS))
    single_s: float | None = None
    _known: dict[int, float] = field(default_factory=dict)  # what `ratio` worked out since it last learned

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Learn from a step of `n_tokens`. Steps before the first of one token teach nothing, nor do those of 0 s."""
        if duration_s <= 0.0:  # too short for a coarse clock
            return
        if n_tokens == 1:
            known = duration_s if self.single_s is None else self.single_s
            self.single_s = known + _OBSERVATION_WEIGHT * (duration_s - known)
        elif self.single_s is not None:
            known = self.ratio(n_tokens)
            # A step that was held up says little: no observation counts for more than three times what is known.
            seen = min(duration_s / self.single_s, 3 * known)
            self.ratios[n_tokens] = known + _OBSERVATION_WEIGHT * (seen - known)
            self._known = {}

    def ratio(self, n_tokens: int) -> float:
        """Return the cost of a step of `n_tokens`, straight between known sizes and on from the last two."""
        if n_tokens not in self._known:
            self._known[n_tokens] = self._between_sizes(n_tokens)
        return self._known[n_tokens]

    def saved_s(self, n_step: int, n_drafted: int, n_accepted: int) -> float:
        """Return the seconds that a draft saved in a step of `n_step` tokens without it, below 0 where it lost some.

        Each token taken spares a step without drafts; the draft made its own step as much longer as steps of that size
        were seen to be. 0 while no step of one token was seen.
        """
        if self.single_s is None:
            return 0.0
        plain = self.ratio(n_step)
        return self.single_s * (n_accepted * plain - (self.ratio(n_step + n_drafted) - plain))

    def _between_sizes(self, n_tokens: int) -> float:
        sizes = sorted(self.ratios)
        right = min(max(bisect_left(sizes, n_tokens), 1), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (self.ratios[high] - self.ratios[low]) / (high - low)
        return max(self.ratios[low] + slope * (n_tokens - low), 0.1)


def _bucket(n_matched: int) -> int:
    """Return 0 for a match of 1 token, 1 for 2–3, 2 for 4–7, and so on up to the last bucket."""
    return min(max(n_matched, 1).bit_length() - 1, len(_PRIOR_RATES) - 1)


@dataclass(slots=True)
class Acceptance:
    """How often draft tokens were taken, by the length of the text they go on from; older ones count less.

    The i-th token of a draft goes on from the matched suffix and the i tokens before it.
    """

    taken: list[float] = field(default_factory=lambda: [rate * _PRIOR_WEIGHT for rate in _PRIOR_RATES])
    tried: list[float] = field(default_factory=lambda: [_PRIOR_WEIGHT] * len(_PRIOR_RATES))

    def observe(self, n_matched: int, n_drafted: int, n_accepted: int) -> None:
        """Learn that `n_accepted` of `n_drafted` tokens were taken; those behind a refused one were not tried."""
        for index in range(min(n_accepted + 1, n_drafted)):
            bucket = _bucket(n_matched + index)
            self.taken[bucket] = self.taken[bucket] * _FORGETTING + (index < n_accepted)
            self.tried[bucket] = self.tried[bucket] * _FORGETTING + 1

    def rate(self, n_matched: int) -> float:
        """Return the share of tried tokens that were taken after matches of about this length."""
        bucket = _bucket(n_matched)
        return self.taken[bucket] / self.tried[bucket]

    def copy(self) -> Acceptance:
        return Acceptance(list(self.taken), list(self.tried))


def draft_length(draft: Draft, acceptance: Acceptance, cost: StepCost, n_step: int, n_answers: int) -> int:
    """Return how many tokens of `draft` to verify in a step of `n_step` tokens for `n_answers` answers without it.

    The best length has the most expected tokens for its cost; 0 where no length beats going without.
    """
    return _best_length(draft.n_matched, draft.chances, acceptance, cost, n_step, n_answers)


def can_pay(n_matched: int, n_most: int, acceptance: Acceptance, cost: StepCost, n_step: int, n_answers: int) -> bool:
    """Return whether the surest draft after a match of this length would be worth its cost; looking it up may wait."""
    return _best_length(n_matched, (1.0,) * n_most, acceptance, cost, n_step, n_answers) > 0


def _best_length(
    n_matched: int, chances: Sequence[float], acceptance: Acceptance, cost: StepCost, n_step: int, n_answers: int
) -> int:
    best_length, best_speed = 0, n_answers / cost.ratio(n_step)
    n_expected, chance_so_far = float(n_answers), 1.0
    for index, chance in enumerate(chances):
        chance_so_far *= acceptance.rate(n_matched + index) * chance
        if chance_so_far < _NEGLIGIBLE_CHANCE:
            break
        n_expected += chance_so_far
        speed = n_expected / cost.ratio(n_step + index + 1)
        if speed > best_speed:
            best_length, best_speed = index + 1, speed
    return best_length
