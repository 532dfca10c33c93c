"""Drafts of a model's own multi-token-prediction layer: it goes on from the hidden state that the model computed.

Owns how such drafts are asked for and what they cost. How the layer is run, and kept in step with the model's cache, is
the backend's; knows nothing of how drafts are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from itertools import repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import CONFIDENCE, DraftEstimate
from app.engine.speculative.draft_source import PROBE_EVERY_TOKENS, DraftCost, DraftRequest, GreedyDraft
from app.engine.speculative.step_cost import StepCost
from app.engine.speculative.suffix_index import Draft

__all__ = ["DraftHead", "MtpHead"]


class MtpHead(Protocol):
    """A layer behind a backend's own that has followed all its sequences, and can go on from where each ends."""

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        """Return the logits of what follows each chunk, of one token each; nothing where there is no room.

        A chunk stands where its sequence ends in the backend, or behind one that was predicted from since. All that is
        forgotten when the backend computes the sequence further.
        """
        ...


class DraftHead:
    """Drafts from `head`, which reads `share_of_bytes` of what the model reads, whose steps cost `target_cost`.

    All answers that ask at once are drafted for in the same batches.
    """

    name = "prediction head"
    evidence = CONFIDENCE

    def __init__(
        self,
        head: MtpHead,
        share_of_bytes: float,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._head = head
        self._cost = DraftCost(share_of_bytes, target_cost)
        self._clock = clock
        self._asked_at: dict[Sequence, int] = {}  # how many tokens it had

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:
        rate = sequence.acceptance[self.name].mean_rate
        return DraftEstimate(repeat(rate, n_most), rate, self._cost.draft_cost(n_answers))

    def n_probe_tokens(self, sequence: Sequence) -> int:
        asked_at = self._asked_at.setdefault(sequence, len(sequence.tokens))
        return int(len(sequence.tokens) >= asked_at + PROBE_EVERY_TOKENS)

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each question; it ends where there is no room, or no more of it would pay."""
        drafts = [GreedyDraft(question, self.name) for question in questions]
        for question in questions:
            self._asked_at[question.sequence] = len(question.sequence.tokens)
        draft_cost = self._cost.draft_cost(len(drafts))
        going = drafts
        while going and self._go_on(going):
            going = [draft for draft in going if draft.is_worth_going_on(draft_cost)]
        return [draft.draft() for draft in drafts]

    def release(self, sequence: Sequence) -> None:
        self._asked_at.pop(sequence, None)

    def _go_on(self, drafts: Many[GreedyDraft]) -> bool:
        """Draft one more token for each. Return False when it could not be computed."""
        begun_s = self._clock()
        predicted = self._head.predict([_next_chunk(draft) for draft in drafts])
        for draft, logits in zip(drafts, predicted, strict=False):
            draft.take(logits)
        if predicted:
            self._cost.observe(len(drafts), self._clock() - begun_s)
        return bool(predicted)


def _next_chunk(draft: GreedyDraft) -> Chunk:
    """Return the last token so far and where it stands: the answer's newest is not computed yet."""
    sequence = draft.question.sequence
    token = draft.tokens[-1] if draft.tokens else sequence.tokens[-1]
    return Chunk(sequence.slot_id, sequence.n_computed + len(draft.tokens), [token], 1)
