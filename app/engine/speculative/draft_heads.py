"""Draft heads: small models that draft from the hidden states of the model that they were made for.

Owns what a head is (`HeadSpec`), the drafts of heads that predict one token in a pass (EAGLE-3, a model's own
multi-token-prediction layer) and of those that predict a block (DFlash, DFlash 2, DSpark), and when drafts of heads are
due. The backend runs a head and keeps it in step with the model's cache. Independent of files and of native code, and
of how drafts are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import CONFIDENCE, MAX_DRAFT_TOKENS, DraftEstimate, StepCost
from app.engine.speculative.draft_source import (
    EXPECTED_ANSWER_TOKENS,
    DraftCost,
    DraftRequest,
    GreedyDraft,
    tokens_between_probes,
)
from app.engine.speculative.suffix_index import NO_DRAFT, Draft

MAX_OBSERVED_WAITING = 16  # tokens of all answers: more are from steps without drafts
MAX_PROBE_SHARE = 1 / 16  # of the time of an answer


class HeadKind(StrEnum):
    MTP = "MTP"
    EAGLE3 = "EAGLE-3"
    DFLASH = "DFlash"
    DFLASH2 = "DFlash 2"
    DSPARK = "DSpark"
    ASSISTANT = "assistant"

    @property
    def source_name(self) -> str:
        return f"{self.value.lower()} head"


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head needs to run. It reads the inputs of the layers `target_layers` of its model; one that equals the
    number of layers is the output of the last. In one pass it predicts up to `n_block` tokens, in whose places
    `mask_token` stands. Of several MTP `n_layers` each predicts one token of a draft. A DFlash 2 head predicts
    `n_candidates` for each place. It `has_windows_only` where no layer of it attends to all tokens."""

    kind: HeadKind
    target_layers: tuple[int, ...]
    n_block: int = 1
    mask_token: int = 0
    samples_from_anchor: bool = False  # the place of the newest token predicts too
    is_causal: bool = True
    has_confidence: bool = False
    n_layers: int = 1
    n_candidates: int = 0
    has_windows_only: bool = False


@dataclass(frozen=True, slots=True)
class PredictedToken:
    token: int
    chance: float


def walk_lattice(lattice: NDArray[np.float32], n_candidates: int) -> list[PredictedToken]:
    """Return the draft of a DFlash 2 head: from place to place the likeliest successor of the token before.

    `lattice` has a row for each place: its `n_candidates` tokens, then for each candidate of the place before as many
    scores, one for each of those tokens, and what no one reads. Before the first place stands the newest token alone:
    there all scores are the same for each candidate. Chances are those among the candidates. Where weights are damaged
    and a score is NaN, the draft ends. Source: `draft` of
    common_speculative_impl_draft_dflash in llama.cpp common/speculative.cpp as vendored in llama-cpp-python 0.3.36.
    """
    predicted, before = [], 0
    for row in lattice:
        begin = n_candidates * (1 + before)
        scores = row[begin : begin + n_candidates]
        before = int(scores.argmax())  # of NaN, if there is any
        if not np.isfinite((scores[before], row[before])).all():
            break
        chance = 1.0 / np.exp(scores - scores[before]).sum()
        predicted.append(PredictedToken(int(row[before]), float(chance)))
    return predicted


class Head(Protocol):
    """A head of a backend that follows all its sequences; what the model computed waits until the head needs it."""

    def n_waiting(self, sequence_ids: Collection[int]) -> int:
        """Return how many tokens of these sequences the head has not computed."""

    def catch_up(self, sequence_ids: Collection[int]) -> None:
        """Compute all of them."""


class AutoregressiveHead(Head, Protocol):
    """A head that predicts one token beyond the end of a sequence, then one more from its own hidden state."""

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        """Return the logits after each chunk, of one token each; an empty list if cells run short, or where a draft is
        as long as the head can make it. A chunk begins where its sequence ends in the backend, or after an earlier
        chunk of this method. Everything is dropped when the backend computes the sequence further."""


class BlockHead(Head, Protocol):
    """A head that predicts a block of tokens beyond the end of a sequence."""

    @property
    def n_block(self) -> int: ...

    def predict_blocks(self, chunks: Many[Chunk]) -> list[list[PredictedToken]]:
        """Return `n_block` tokens after each chunk, which is the newest token of a sequence; an empty list if cells
        run short."""


HeadT = TypeVar("HeadT", bound=Head)


class _HeadSource(Generic[HeadT]):
    """What the drafts of both kinds of heads have in common: their cost, and when they are due. `name` is that of the
    drafts. The `head` reads `share_of_bytes` of the bytes of the model with `target_cost`."""

    evidence = CONFIDENCE

    def __init__(
        self,
        name: str,
        head: HeadT,
        share_of_bytes: float,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self._head = head
        self._cost = DraftCost(share_of_bytes, target_cost)
        self._clock = clock
        self._probed_at: dict[Sequence, int] = {}  # its number of tokens then

    def n_probe_tokens(self, sequence: Sequence) -> int:
        probed_at = self._probed_at.setdefault(sequence, len(sequence.tokens))
        n_least = tokens_between_probes(sequence.drafting.acceptance[self.name])
        n_between = max(n_least, self._catch_up_cost(sequence) / MAX_PROBE_SHARE)
        return int(len(sequence.tokens) >= probed_at + n_between)

    def release(self, sequence: Sequence) -> None:
        self._probed_at.pop(sequence, None)

    def _begin(self, requests: Many[DraftRequest]) -> float:
        """Note that these are drafted for and return the time. Tokens of many steps without drafts are computed before:
        only those of the last step are part of what a draft costs."""
        for request in requests:
            self._probed_at[request.sequence] = len(request.sequence.tokens)
        sequence_ids = [request.sequence.slot_id for request in requests]
        n_waiting, started_s = self._head.n_waiting(sequence_ids), self._clock()
        if n_waiting <= MAX_OBSERVED_WAITING:
            return started_s
        self._head.catch_up(sequence_ids)
        ended_s = self._clock()
        self._cost.observe_waiting(n_waiting, ended_s - started_s)
        return ended_s

    def _catch_up_cost(self, sequence: Sequence) -> float:
        """Return the cost of computing what waits before the first draft, a long prompt for example."""
        n_waiting = self._head.n_waiting((sequence.slot_id,))
        return self._cost.of_waiting(n_waiting) if n_waiting > MAX_OBSERVED_WAITING else 0.0

    def _shared_catch_up(self, sequence: Sequence) -> float:
        """Return the part of that cost which one draft of the rest of the answer bears."""
        n_left = min(sequence.limit - len(sequence.tokens), EXPECTED_ANSWER_TOKENS)
        return self._catch_up_cost(sequence) / max(1, n_left)


class AutoregressiveHeadSource(_HeadSource[AutoregressiveHead]):
    """Drafts of a head token by token, up to `n_most`; all requests of one call are drafted in the same batches."""

    def __init__(
        self,
        name: str,
        head: AutoregressiveHead,
        share_of_bytes: float,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
        n_most: int = MAX_DRAFT_TOKENS,
    ) -> None:
        super().__init__(name, head, share_of_bytes, target_cost, clock)
        self._n_most = n_most

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        rate, n_max = sequence.drafting.acceptance[self.name].mean_rate, min(n_max, self._n_most)
        per_token, catch_up = self._cost.per_token(n_answers), self._shared_catch_up(sequence)
        return DraftEstimate(repeat(rate, n_max), rate, per_token, catch_up)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request; it ends when cells run short, or when more of it would not pay."""
        drafts = [GreedyDraft(request, self.name) for request in requests]
        draft_cost = self._cost.per_token(len(drafts))
        growing, started_s = drafts, self._begin(requests)
        while growing and (predicted := self._head.predict(list(map(_next_chunk, growing)))):
            for draft, logits in zip(growing, predicted, strict=False):
                draft.append(logits)
            self._cost.observe(len(growing), self._clock() - started_s)
            growing, started_s = [draft for draft in growing if draft.may_continue(draft_cost)], self._clock()
        return [draft.draft() for draft in drafts]


class BlockHeadSource(_HeadSource[BlockHead]):
    """Drafts of a head block by block: computed whole, as it was trained, for all requests of one call at once."""

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        rate = sequence.drafting.acceptance[self.name].mean_rate
        n_tokens = min(n_max, self._head.n_block)
        pass_cost = self._cost.of_step(n_answers * self._head.n_block) / max(1, n_answers)
        return DraftEstimate(repeat(rate, n_tokens), rate, pass_cost=pass_cost + self._shared_catch_up(sequence))

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request, empty when cells run short."""
        sequences = [request.sequence for request in requests]
        started_s = self._begin(requests)
        blocks = self._head.predict_blocks(
            [Chunk(sequence.slot_id, len(sequence.tokens) - 1, sequence.tokens[-1:], 1) for sequence in sequences]
        )
        if not blocks:
            return [NO_DRAFT] * len(requests)
        self._cost.observe(len(requests) * self._head.n_block, self._clock() - started_s)
        drafts = []
        for request, block in zip(requests, blocks, strict=True):
            used = block[: request.n_tokens]
            drafts.append(Draft(tuple(item.token for item in used), tuple(item.chance for item in used), 0, self.name))
        return drafts


def _next_chunk(draft: GreedyDraft) -> Chunk:
    """Return the last token so far as a chunk: the newest token of the answer is not computed yet. The model may have
    to repeat tokens before it, which the head has kept."""
    sequence = draft.request.sequence
    token = draft.tokens[-1] if draft.tokens else sequence.tokens[-1]
    return Chunk(sequence.slot_id, len(sequence.tokens) - 1 + len(draft.tokens), [token], 1)
