"""How many draft tokens to verify: as many as give the most tokens a second, and none when none pays. Pure.

Three estimates decide: what a batch of n tokens costs here compared with one, what drafting itself costs, and how often
drafts are taken. Knows nothing of where drafts come from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app.engine.draft import Draft

__all__ = ["CONFIDENCE", "CPU_COST_RATIOS", "MATCH_LENGTH", "Acceptance", "Cut", "Evidence", "StepCost", "best_cut"]

# Time of a step of n tokens over that of one, all with logits. Measured with a 1.24B Q4_K_M on 2 AVX-512 cores at depth
# 512, weights repacked, attention not fused. The kernels take 16 rows at once, then 4, and each row that is left over
# reads all weights again: a step of 16 costs less than one of 11.
# fmt: off
CPU_COST_RATIOS: dict[int, float] = {
    1: 1.0, 2: 1.6, 3: 2.03, 4: 1.93, 5: 2.5, 8: 4.2, 9: 4.4, 12: 4.9, 15: 6.1, 16: 4.9, 17: 6.0, 24: 7.4, 28: 8.3,
    31: 9.6, 32: 8.4, 33: 9.4, 36: 9.9, 40: 10.6, 47: 12.9, 48: 11.7, 63: 16.1, 64: 15.0,
}
# fmt: on
_OBSERVATION_WEIGHT = 0.2
_NEGLIGIBLE_CHANCE = 0.02  # of all draft tokens so far being taken
_FORGETTING = 0.97  # of earlier drafts' weight with each new one
_PRIOR_WEIGHT = 4.0
_HOPE = 0.8  # the mean rate before any token was tried: a model that nobody asks is never learned about


@dataclass(slots=True)
class StepCost:
    """What a step costs by its number of tokens, in units of a step of one token; measured as steps go by."""

    ratios: dict[int, float] = field(default_factory=lambda: dict(CPU_COST_RATIOS))
    single_s: float | None = None
    _known: dict[int, float] = field(default_factory=dict)  # what `ratio` worked out since it last learned

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> StepCost:
        """Return costs that are as measured where that was done, and bent from what is usual in between."""
        bends = {n_tokens: ratio / _at(CPU_COST_RATIOS, n_tokens) for n_tokens, ratio in measured.items()}
        usual = {n_tokens: ratio * _at(bends, n_tokens) for n_tokens, ratio in CPU_COST_RATIOS.items()} if bends else {}
        return cls({**CPU_COST_RATIOS, **usual, **measured})

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Learn from a step of `n_tokens`. Steps before the first of one token teach nothing, nor do those of 0 s."""
        if duration_s <= 0.0:  # too short for a coarse clock
            return
        if n_tokens == 1:
            known = duration_s if self.single_s is None else self.single_s
            self.single_s = known + _OBSERVATION_WEIGHT * (duration_s - known)
        elif self.single_s:  # 0.0 where the clock is coarser than a step
            known = self.ratio(n_tokens)
            # A step that was held up says little: no observation counts for more than three times what is known.
            seen = min(duration_s / self.single_s, 3 * known)
            self.ratios[n_tokens] = known + _OBSERVATION_WEIGHT * (seen - known)
            self._known = {}

    def ratio(self, n_tokens: int) -> float:
        """Return the cost of a step of `n_tokens`: straight between known sizes, beyond the largest in proportion."""
        if n_tokens not in self._known:
            n_largest = max(self.ratios)
            beyond = max(1.0, n_tokens / n_largest)
            self._known[n_tokens] = _at(self.ratios, n_tokens) * beyond
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


def _at(points: Mapping[int, float], n_tokens: int) -> float:
    """Return the value at `n_tokens`, straight between known points and that of the outermost beyond them."""
    sizes = sorted(points)
    right = bisect_left(sizes, n_tokens)
    low, high = sizes[max(0, right - 1)], sizes[min(right, len(sizes) - 1)]
    share = (n_tokens - low) / (high - low) if low < n_tokens < high else float(n_tokens >= high)
    return points[low] + share * (points[high] - points[low])


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a draft's tokens, in levels: `level(draft, index)` is that of a token.

    `prior_rates` are how often tokens of each level are taken before any was tried. With `weighs_chances` a draft's own
    chances count on top of that.
    """

    level: Callable[[Draft, int], int]
    prior_rates: tuple[float, ...]
    weighs_chances: bool


def _match_level(draft: Draft, index: int) -> int:
    """Return 0 for a match of 1 token, 1 for 2–3, 2 for 4–7 …: the i-th token goes on from it and i tokens more."""
    return min(max(draft.n_matched + index, 1).bit_length() - 1, len(MATCH_LENGTH.prior_rates) - 1)


def _confidence_level(draft: Draft, index: int) -> int:
    return min(int(draft.chances[index] * len(CONFIDENCE.prior_rates)), len(CONFIDENCE.prior_rates) - 1)


# Of a lookup: how long the text is that occurred before. Of a text that is followed through changes: how much of it
# came as expected. Of a model: how sure it is itself, from 0–1/6 to 5/6–1.
MATCH_LENGTH = Evidence(_match_level, (0.05, 0.3, 0.7, 0.9, 0.95, 0.98), weighs_chances=True)
AGREEMENT = Evidence(_match_level, (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), weighs_chances=False)
CONFIDENCE = Evidence(_confidence_level, (0.2, 0.3, 0.5, 0.6, 0.75, 0.9), weighs_chances=False)


class Acceptance:
    """How often draft tokens were taken, by level of evidence; older ones count less."""

    def __init__(self, evidence: Evidence = MATCH_LENGTH) -> None:
        self._evidence = evidence
        self._taken = [rate * _PRIOR_WEIGHT for rate in evidence.prior_rates]
        self._tried = [_PRIOR_WEIGHT] * len(evidence.prior_rates)
        self._n_taken, self._n_tried = _HOPE * _PRIOR_WEIGHT, _PRIOR_WEIGHT

    def observe(self, draft: Draft, n_drafted: int, n_accepted: int) -> None:
        """Learn that `n_accepted` of `n_drafted` tokens were taken; those behind a refused one were not tried."""
        for index in range(min(n_accepted + 1, n_drafted)):
            level, is_taken = self._evidence.level(draft, index), index < n_accepted
            self._taken[level] = self._taken[level] * _FORGETTING + is_taken
            self._tried[level] = self._tried[level] * _FORGETTING + 1
            self._n_taken = self._n_taken * _FORGETTING + is_taken
            self._n_tried = self._n_tried * _FORGETTING + 1

    @property
    def mean_rate(self) -> float:
        """The share of tried tokens that were taken, whatever spoke for them; hopeful before any was tried."""
        return self._n_taken / self._n_tried

    def chances(self, draft: Draft) -> Iterator[float]:
        """Yield how likely each token of `draft` is to be taken where those before it were."""
        level, weighs_chances = self._evidence.level, self._evidence.weighs_chances
        for index, chance in enumerate(draft.chances):
            bucket = level(draft, index)
            rate = self._taken[bucket] / self._tried[bucket]
            yield rate * chance if weighs_chances else rate

    def copy(self) -> Acceptance:
        twin = Acceptance(self._evidence)
        twin._taken, twin._tried = list(self._taken), list(self._tried)
        twin._n_taken, twin._n_tried = self._n_taken, self._n_tried
        return twin


@dataclass(frozen=True, slots=True)
class Cut:
    """How many tokens of a draft to verify, and how many times as many tokens a second come of it as without."""

    n_tokens: int
    gain: float


def best_cut(chances: Iterable[float], cost: StepCost, n_step: int, n_answers: int, toll: float = 0.0) -> Cut:
    """Return the length with the most expected tokens for its cost, 0 where none beats going without.

    `chances` are those of each token where the ones before it are taken. The step has `n_step` tokens for `n_answers`
    answers without this draft. `toll` is what drafting a token costs, in units of a step of one token.
    """
    without = n_answers / cost.ratio(n_step)
    best_length, best_speed = 0, without
    n_expected, chance_so_far = float(n_answers), 1.0
    for n_tokens, chance in enumerate(chances, start=1):
        chance_so_far *= chance
        if chance_so_far < _NEGLIGIBLE_CHANCE:
            break
        n_expected += chance_so_far
        speed = n_expected / (cost.ratio(n_step + n_tokens) + toll * n_tokens)
        if speed > best_speed:
            best_length, best_speed = n_tokens, speed
    return Cut(best_length, best_speed / without)
