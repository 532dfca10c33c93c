"""Draft heads: small models that draft from the hidden states of the model that they were made for.

Owns what a head is (`HeadSpec`) and drafts of heads that predict a block of tokens in one pass (DFlash, DSpark); those
that predict one token further (EAGLE-3) draft as `draft_model.DraftHead`. Independent of files and of native code, and
of how drafts are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Protocol

from app.engine.backend import Chunk
from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import DraftEstimate
from app.engine.speculative.draft_source import DraftRequest, HeadSource
from app.engine.speculative.step_cost import StepCost
from app.engine.speculative.suffix_index import NO_DRAFT, Draft

__all__ = ["BlockHead", "BlockHeadSource", "HeadKind", "HeadSpec", "PredictedToken"]


class HeadKind(StrEnum):
    """The kinds of heads, by the names that people know."""

    EAGLE3 = "EAGLE-3"
    DFLASH = "DFlash"
    DSPARK = "DSpark"

    @property
    def source_name(self) -> str:
        """The name of its drafts in metrics."""
        return f"{self.value.lower()} head"


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head needs to run.

    It reads the inputs of the layers `target_layers` of its model; one that equals the number of layers is the output
    of the last. In one pass it predicts up to `n_block` tokens, in whose places `mask_token` stands.
    """

    kind: HeadKind
    target_layers: tuple[int, ...]
    n_block: int = 1
    mask_token: int = 0
    samples_from_anchor: bool = False  # the place of the newest token predicts too
    is_causal: bool = True
    has_confidence: bool = False


@dataclass(frozen=True, slots=True)
class PredictedToken:
    """A token with the chance that its head gives it."""

    token: int
    chance: float


class BlockHead(Protocol):
    """A head of a backend that has followed all its sequences, and predicts a block beyond the end of each."""

    @property
    def n_block(self) -> int: ...

    def predict_blocks(self, chunks: Many[Chunk]) -> list[list[PredictedToken]]:
        """Return `n_block` tokens after each chunk, which is the newest token of a sequence; an empty list if cells
        run short."""
        ...


class BlockHeadSource(HeadSource):
    """Drafts called `name` from `head`, which reads `share_of_bytes` of the bytes of the model with `target_cost`.

    A block is computed whole, as the head was trained, for all requests of one call at once.
    """

    def __init__(
        self,
        name: str,
        head: BlockHead,
        share_of_bytes: float,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(name, share_of_bytes, target_cost, clock)
        self._head = head

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        rate = sequence.acceptance[self.name].mean_rate
        n_tokens = min(n_max, self._head.n_block)
        pass_cost = self._cost.of_step(n_answers * self._head.n_block) / max(1, n_answers)
        return DraftEstimate(repeat(rate, n_tokens), rate, pass_cost=pass_cost)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request, empty when cells run short."""
        chunks = []
        for request in requests:
            sequence = request.sequence
            self._probed_at[sequence] = len(sequence.tokens)
            chunks.append(Chunk(sequence.slot_id, len(sequence.tokens) - 1, sequence.tokens[-1:], 1))
        started_s = self._clock()
        blocks = self._head.predict_blocks(chunks)
        if not blocks:
            return [NO_DRAFT] * len(requests)
        self._cost.observe(len(requests) * self._head.n_block, self._clock() - started_s)
        return [self._draft(block[: request.n_tokens]) for request, block in zip(requests, blocks, strict=True)]

    def _draft(self, block: Many[PredictedToken]) -> Draft:
        return Draft(tuple(item.token for item in block), tuple(item.chance for item in block), 0, self.name)
