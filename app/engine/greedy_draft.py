"""A draft in the making by something that computes: its likeliest token each time, as long as that may pay.

Owns what such a draft costs and when it ends. Knows nothing of what computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.engine.draft import Draft
from app.engine.sources import Question
from app.engine.step_cost import StepCost

__all__ = ["GUESS_EVERY_TOKENS", "DraftCost", "GreedyDraft"]

GUESS_EVERY_TOKENS = 64  # how often a source that does not pay is asked for one token, to learn whether it does by now


@dataclass(slots=True)
class GreedyDraft:
    """A draft of `source` for a question; `chance` is that of all its tokens being taken."""

    question: Question
    source: str
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    chance: float = 1.0

    def take(self, logits: NDArray[np.float32]) -> None:
        """Add the likeliest token, with its probability."""
        token = int(logits.argmax())
        confidence = float(1.0 / np.exp(logits - logits[token]).sum())
        self.tokens.append(token)
        self.chances.append(confidence)
        acceptance = self.question.sequence.acceptance[self.source]
        self.chance *= next(acceptance.chances(Draft((token,), (confidence,), 0)))

    def is_worth_going_on(self, toll: float) -> bool:
        """Whether one more token may pay where it costs `toll`, in units of a step of one token."""
        return len(self.tokens) < self.question.n_tokens and self.chance > toll

    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.chances), 0, self.source)


class DraftCost:
    """What drafting costs in units of the target's step of one token.

    Until both were measured it is what is read for it: `share_of_bytes` of what the target reads.
    """

    def __init__(self, share_of_bytes: float, target: StepCost) -> None:
        self._share_of_bytes = share_of_bytes
        self._target = target
        self._own = StepCost()

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Learn from a drafting step of `n_tokens`."""
        self._own.observe(n_tokens, duration_s)

    def of_step(self, n_tokens: int) -> float:
        """Return the cost of a drafting step of `n_tokens`."""
        own_s, target_s = self._own.single_s, self._target.single_s
        single = own_s / target_s if own_s and target_s else self._share_of_bytes
        return single * self._own.ratio(n_tokens)

    def toll(self, n_answers: int) -> float:
        """Return the cost of a token while `n_answers` are drafted for in the same steps."""
        return self.of_step(n_answers) / max(1, n_answers)
