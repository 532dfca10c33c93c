"""What a step costs by its number of tokens, compared with one token: measured as steps go by. Pure.

Knows nothing of drafts but how many tokens they may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from operator import mul, truediv

import numpy as np

__all__ = ["CPU_COST_RATIOS", "MAX_DRAFT_TOKENS", "StepCost"]

MAX_DRAFT_TOKENS = 63  # of all answers together: nobody's next token waits for more

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


@dataclass(slots=True)
class StepCost:
    """What a step costs by its number of tokens, in units of a step of one token; measured as steps go by."""

    ratios: dict[int, float] = field(default_factory=lambda: dict(CPU_COST_RATIOS))
    single_s: float | None = None
    _known: dict[int, list[float]] = field(default_factory=dict)  # `ratios_from` since it last learned
    _least: dict[tuple[int, int], float] = field(default_factory=dict)  # and `least_chance`

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> StepCost:
        """Return costs that are as measured where that was done, and bent from what is usual in between."""
        if not measured:
            return cls()
        bends = map(truediv, measured.values(), _at(CPU_COST_RATIOS, list(measured)))
        bent = map(mul, CPU_COST_RATIOS.values(), _at(dict(zip(measured, bends, strict=True)), list(CPU_COST_RATIOS)))
        return cls({**dict(zip(CPU_COST_RATIOS, bent, strict=True)), **measured})

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
            self._known, self._least = {}, {}

    def ratio(self, n_tokens: int) -> float:
        """Return the cost of a step of `n_tokens`: straight between known sizes, beyond the largest in proportion."""
        return next(self.ratios_from(n_tokens))

    def ratios_from(self, n_step: int) -> Iterator[float]:
        """Return the costs of a step of `n_step` tokens and of those with 1 … MAX_DRAFT_TOKENS more."""
        known = self._known.get(n_step)
        if known is None:
            sizes, n_largest = range(n_step, n_step + MAX_DRAFT_TOKENS + 1), max(self.ratios)
            beyond = (max(1.0, n_tokens / n_largest) for n_tokens in sizes)
            known = self._known[n_step] = list(map(mul, _at(self.ratios, sizes), beyond))
        return iter(known)

    def least_chance(self, n_step: int, n_answers: int) -> float:
        """Return a chance of the first token at or below which no draft pays in a step of `n_step` tokens.

        Even where all tokens behind the first come as surely as can be, a draft of n gives at most n times its chance.
        """
        least = self._least.get((n_step, n_answers))
        if least is None:
            without, *costs = self.ratios_from(n_step)
            added = (n_answers * (cost / without - 1) / n_tokens for n_tokens, cost in enumerate(costs, start=1))
            least = self._least[n_step, n_answers] = min(added)
        return least

    def saved_s(self, n_step: int, n_drafted: int, n_accepted: int) -> float:
        """Return the seconds that a draft saved in a step of `n_step` tokens without it, below 0 where it lost some.

        Each token taken spares a step without drafts; the draft made its own step as much longer as steps of that size
        were seen to be. 0 while no step of one token was seen.
        """
        if self.single_s is None:
            return 0.0
        plain = self.ratio(n_step)
        return self.single_s * (n_accepted * plain - (self.ratio(n_step + n_drafted) - plain))


def _at(points: Mapping[int, float], sizes: Many[int]) -> list[float]:
    """Return the values at `sizes`, straight between known points and those of the outermost beyond them."""
    known = sorted(points)
    values: list[float] = np.interp(sizes, known, [points[n_tokens] for n_tokens in known]).tolist()
    return values
