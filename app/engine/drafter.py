"""Drafts for running answers: proposed where they pay, settled when they were verified, learned from either way.

Owns what is known of costs and acceptance across requests. Knows nothing of the cache or of sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from app.engine.scheduler import StepBudget
from app.engine.sequence import NO_DRAFT, Sequence
from app.engine.speculation import Acceptance, StepCost, can_pay, draft_length

__all__ = ["Drafter"]

MAX_DRAFT_TOKENS = 31


class Drafter:
    """Gives sequences their drafts. A new request begins with the acceptance that all others have shown."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._acceptance = Acceptance()
        self._n_step = 1  # tokens of the step that is planned, drafts left out

    def new_acceptance(self) -> Acceptance:
        """Return what a new request should expect; it learns for itself from there."""
        return self._acceptance.copy()

    def assign(self, running: Many[Sequence], budget: StepBudget) -> None:
        """Give each running answer the draft that pays, counting what the others already add to the step."""
        answering = [sequence for sequence in running if sequence.is_answering]
        self._n_step = n_step = sum(min(sequence.n_pending, budget.n_prefill_tokens) for sequence in running)
        for sequence in answering:
            n_most = min(MAX_DRAFT_TOKENS, sequence.limit - len(sequence.tokens) - 1)
            n_step += self._assign_one(sequence, n_most, n_step, len(answering)) if n_most > 0 else 0

    def compare(self, sequence: Sequence, token: int) -> None:
        """Learn from the guess that was not worth verifying, now that `token` was sampled."""
        if sequence.guess.tokens:
            self._learn(sequence, sequence.guess.n_matched, 1, int(sequence.guess.tokens[0] == token))
            sequence.guess = NO_DRAFT

    def settle(self, sequence: Sequence, n_verified: int, n_accepted: int) -> None:
        """Count and learn from a draft of which `n_verified` tokens were tried and `n_accepted` taken; it is gone."""
        sequence.n_drafted += n_verified
        sequence.n_accepted += n_accepted
        sequence.saved_s += self._cost.saved_s(self._n_step, n_verified, n_accepted)
        self._learn(sequence, sequence.draft.n_matched, n_verified, n_accepted)
        sequence.draft = NO_DRAFT

    def observe_step(self, n_tokens: int, duration_s: float) -> None:
        """Learn what a step of answers and their drafts cost."""
        self._cost.observe(n_tokens, duration_s)

    def _assign_one(self, sequence: Sequence, n_most: int, n_step: int, n_answers: int) -> int:
        index, acceptance = sequence.suffixes(), sequence.acceptance
        is_worth_it = can_pay(index.n_matched, n_most, acceptance, self._cost, n_step, n_answers)
        draft = index.propose(n_most if is_worth_it else 1)
        length = draft_length(draft, acceptance, self._cost, n_step, n_answers) if is_worth_it else 0
        sequence.draft, sequence.guess = draft.cut(length), draft.cut(0 if length else 1)
        return length

    def _learn(self, sequence: Sequence, n_matched: int, n_drafted: int, n_accepted: int) -> None:
        for acceptance in (sequence.acceptance, self._acceptance):
            acceptance.observe(n_matched, n_drafted, n_accepted)
