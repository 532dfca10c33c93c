"""What drafts gain, by how often their tokens are taken and how long they are, where steps cost what they do. Pure.

Owns the table. Knows nothing of where drafts come from; looking them up takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from app.engine.speculation import best_cut
from app.engine.step_cost import MAX_DRAFT_TOKENS, StepCost

__all__ = ["ACCEPTANCES", "LENGTHS", "DraftGain", "draft_gains"]

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
    best = best_cut(repeat(acceptance, MAX_DRAFT_TOKENS), cost, n_step=1, n_answers=1)
    gains = {length: _gain(acceptance, length, cost) for length in LENGTHS}
    return DraftGain(acceptance, gains, best.n_tokens, best.gain)


def _gain(acceptance: float, length: int, cost: StepCost) -> float:
    n_expected = sum(acceptance**n_taken for n_taken in range(length + 1))  # the first is the model's own
    return n_expected * cost.ratio(1) / cost.ratio(1 + length)
