"""The cost of a step by its tokens and answers, compared with a step of one token: measured as steps run. Pure.

Independent of drafts but their largest number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat
from operator import add, mul, truediv

import numpy as np

MAX_DRAFT_TOKENS = 63  # of all answers together: no next token waits for more

# Measured with a 1.24B Q4_K_M on 2 AVX-512 cores at depth 512, repacked, attention not fused, all tokens with logits.
# Kernels take 16 rows at once, then 4, and each row left over reads all weights again: 16 tokens cost less than 11.
# fmt: off
CPU_COST_RATIOS: dict[int, float] = {
    1: 1.0, 2: 1.6, 3: 2.03, 4: 1.93, 5: 2.5, 8: 4.2, 9: 4.4, 12: 4.9, 15: 6.1, 16: 4.9, 17: 6.0, 24: 7.4, 28: 8.3,
    31: 9.6, 32: 8.4, 33: 9.4, 36: 9.9, 40: 10.6, 47: 12.9, 48: 11.7, 63: 16.1, 64: 15.0,
}
# fmt: on
_OBSERVATION_WEIGHT = 0.2
N_SETTLING = 2  # steps after a change of size that compute no faster for being alike: a graph is built, then captured
_N_LASTING = 8  # steps that share the cost of a change, where a source drafts at every step


def moving_average(known: float | None, observed: float) -> float:
    """Return what is known after one more observation, the observation itself if it is the first."""
    return observed if known is None else known + _OBSERVATION_WEIGHT * (observed - known)


@dataclass(slots=True)
class StepCost:
    """The cost of a step in units of a step of one token; measured as steps run.

    `ratios` are those of one answer by number of tokens. Each further answer in the step adds `per_answer`, for states
    and caches of its own: as part of the ratios it would make 8 answers dearer than a step of 7 and one of 2.

    `size_change` is what a step between others of another size costs more than among its like, the steps after it
    included: GPUs repeat a captured graph, and one of another size is built and captured anew. 0 without such.
    """

    ratios: dict[int, float] = field(default_factory=lambda: dict(CPU_COST_RATIOS))
    single_s: float | None = None
    per_answer: float = 0.0
    size_change: float = 0.0
    _n_last: int = 1  # tokens of the last step
    _n_alike: int = 0  # steps of that size since the one of another
    _cached_ratios: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # since the last observation
    _cached_chances: dict[tuple[int, int, int, bool], float] = field(default_factory=dict)  # and `min_first_chance`

    @classmethod
    def from_measured(cls, measured: Mapping[int, float], size_change: float = 0.0) -> StepCost:
        """Return costs that equal the `measured` ones, and scale the usual ones in between."""
        if not measured:
            return cls(size_change=size_change)
        scales = map(truediv, measured.values(), _at(CPU_COST_RATIOS, list(measured)))
        by_size = dict(zip(measured, scales, strict=True))
        scaled = map(mul, CPU_COST_RATIOS.values(), _at(by_size, list(CPU_COST_RATIOS)))
        return cls({**dict(zip(CPU_COST_RATIOS, scaled, strict=True)), **measured}, size_change=size_change)

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
            # A step that was held up shows little: no observation counts for more than three times the known ratio.
            self._observe(n_tokens, n_answers, min(duration_s / self.single_s, 3 * self.ratio(n_tokens, n_answers)))
            self._cached_ratios, self._cached_chances = {}, {}

    def _observe(self, n_tokens: int, n_answers: int, observed: float) -> None:
        known = self.ratio(n_tokens)
        excess = observed - known
        if n_answers > 1:
            per_answer = excess / (n_answers - 1)
            self.per_answer = max(0.0, moving_average(self.per_answer, per_answer))
        if n_answers == 1 or excess < 0.0:  # one answer costs no more than several
            self.ratios[n_tokens] = moving_average(known, observed)

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        """Return the cost of a step of `n_tokens`: linear between known sizes, proportional beyond the largest."""
        return self._base_ratios(n_tokens, n_answers)[0]

    def ratios_from(self, n_step: int, n_answers: int = 1, *, is_lasting: bool = False) -> Iterator[float]:
        """Return the costs of a step of `n_step` tokens of `n_answers`, and with 1 … MAX_DRAFT_TOKENS more.

        Those have the cost of a change if they differ from the last step, a part of it where drafts are to be lasting.
        """
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
            sizes, n_largest = range(n_step, n_step + MAX_DRAFT_TOKENS + 1), max(self.ratios)
            beyond = (max(1.0, n_tokens / n_largest) for n_tokens in sizes)
            of_others = repeat((n_answers - 1) * self.per_answer)
            known = list(map(add, map(mul, _at(self.ratios, sizes), beyond), of_others))
            self._cached_ratios[n_step, n_answers] = known
        return known

    def min_first_chance(self, n_step: int, n_answers: int, *, is_lasting: bool = False) -> float:
        """Return a chance of the first token at or below which no draft pays in a step of `n_step` tokens.

        Even if all later tokens are certain, a draft of n gives at most n times the chance of its first.
        """
        key = n_step, n_answers, self._n_last if self.size_change else 0, is_lasting
        chance = self._cached_chances.get(key)
        if chance is None:
            without, *costs = self.ratios_from(n_step, n_answers, is_lasting=is_lasting)
            added = (n_answers * (cost / without - 1) / n_tokens for n_tokens, cost in enumerate(costs, start=1))
            chance = self._cached_chances[key] = min(added)
        return chance

    def saved_s(self, n_step: int, n_answers: int, n_drafted: int, n_accepted: int, n_repeated: int = 0) -> float:
        """Return the seconds that a draft saved in a step of `n_step` tokens without it, negative if it cost time.

        Each accepted token saves a step without drafts; the draft made its own step as long as steps of that size were
        measured to be, and the next one longer by `n_repeated` tokens. 0 before the first step of one token.
        """
        if self.single_s is None:
            return 0.0
        plain = self.ratio(n_step, n_answers)
        drafted = next(islice(self.ratios_from(n_step, n_answers), n_drafted, None))
        added = drafted + self.ratio(n_step + n_repeated, n_answers) - 2 * plain
        return self.single_s * (n_accepted * plain - added)


def _at(points: Mapping[int, float], sizes: Many[int]) -> list[float]:
    """Return the values at `sizes`, linear between known points and constant beyond them."""
    known = sorted(points)
    values: list[float] = np.interp(sizes, known, [points[n_tokens] for n_tokens in known]).tolist()
    return values
