"""Drafts of a model's own multi-token-prediction (MTP) layer, from the hidden state that the model computed.

Owns how such drafts are requested and what they cost. The backend runs the layer and keeps it in step with the model's
cache. Independent of how drafts are verified.
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
    """An MTP layer of a backend that has followed all its sequences, and can predict beyond the end of each."""

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        """Return the logits after each chunk, of one token each; an empty list if cells run short.

        A chunk begins where its sequence ends in the backend, or after an earlier chunk of this method. Everything is
        dropped when the backend computes the sequence further.
        """
        ...


class DraftHead:
    """Drafts from `head`, which reads `share_of_bytes` of the bytes of the model, whose steps cost `target_cost`.

    All requests of one call are drafted in the same batches.
    """

    name = "mtp head"
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
        self._probed_at: dict[Sequence, int] = {}  # its number of tokens then

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        rate = sequence.acceptance[self.name].mean_rate
        return DraftEstimate(repeat(rate, n_max), rate, self._cost.per_token(n_answers))

    def n_probe_tokens(self, sequence: Sequence) -> int:
        probed_at = self._probed_at.setdefault(sequence, len(sequence.tokens))
        return int(len(sequence.tokens) >= probed_at + PROBE_EVERY_TOKENS)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request; it ends when cells run short, or when more of it would not pay."""
        drafts = [GreedyDraft(request, self.name) for request in requests]
        for request in requests:
            self._probed_at[request.sequence] = len(request.sequence.tokens)
        draft_cost = self._cost.per_token(len(drafts))
        growing = drafts
        while growing and self._extend(growing):
            growing = [draft for draft in growing if draft.may_continue(draft_cost)]
        return [draft.draft() for draft in drafts]

    def release(self, sequence: Sequence) -> None:
        self._probed_at.pop(sequence, None)

    def _extend(self, drafts: Many[GreedyDraft]) -> bool:
        """Draft one more token for each. Return False if it could not be computed."""
        started_s = self._clock()
        predicted = self._head.predict([_next_chunk(draft) for draft in drafts])
        for draft, logits in zip(drafts, predicted, strict=False):
            draft.append(logits)
        if predicted:
            self._cost.observe(len(drafts), self._clock() - started_s)
        return bool(predicted)


def _next_chunk(draft: GreedyDraft) -> Chunk:
    """Return the last token so far as a chunk: the newest token of the answer is not computed yet."""
    sequence = draft.request.sequence
    token = draft.tokens[-1] if draft.tokens else sequence.tokens[-1]
    return Chunk(sequence.slot_id, sequence.n_computed + len(draft.tokens), [token], 1)
