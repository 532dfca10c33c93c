"""Where drafts come from: what the drafter asks of a source.

Every source proposes single tokens, hence point masses: kept just where they equal the sample, they leave the
distribution of the output as it was, at any temperature. Knows nothing of how drafts are cut and verified.

A draft in the making by something that computes: its likeliest token each time, as long as that may pay.

Owns what such a draft costs and when it ends. Knows nothing of what computes it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import DraftEstimate, Evidence
from app.engine.speculative.step_cost import StepCost
from app.engine.speculative.suffix_index import Draft

__all__ = ["PROBE_EVERY_TOKENS", "DraftCost", "DraftRequest", "DraftSource", "GreedyDraft"]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """How may this sequence go on, in at most `n_tokens`?"""

    sequence: Sequence
    n_tokens: int


class DraftSource(Protocol):
    """Something that proposes how answers may go on."""

    @property
    def name(self) -> str: ...

    @property
    def evidence(self) -> Evidence: ...

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:
        """Return what a draft of `n_most` tokens would be worth while `n_answers` answers run."""
        ...

    def n_probe_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens to ask for where no draft pays, only to learn from them."""
        ...

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each question, empty where there is none."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended (it has a finish reason then) or is about to forget some of its text."""
        ...


PROBE_EVERY_TOKENS = 64  # how often a source that does not pay is asked for one token, to learn whether it does by now


@dataclass(slots=True)
class GreedyDraft:
    """A draft of `source` for a question; `chance` is that of all its tokens being taken."""

    question: DraftRequest
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

    def is_worth_going_on(self, draft_cost: float) -> bool:
        """Whether one more token may pay where it costs `draft_cost`, in units of a step of one token."""
        return len(self.tokens) < self.question.n_tokens and self.chance > draft_cost

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

    def draft_cost(self, n_answers: int) -> float:
        """Return the cost of a token while `n_answers` are drafted for in the same steps."""
        return self.of_step(n_answers) / max(1, n_answers)
