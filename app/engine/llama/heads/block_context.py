"""Heads that predict a block of tokens at once: DFlash and DSpark.

Source: common_speculative_impl_draft_dflash in llama.cpp common/speculative.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.engine.backend import Chunk, DecodeStatus
from app.engine.llama.context import Batch, NativeContext
from app.engine.llama.heads.head_context import HeadContext, WaitingTokens
from app.engine.llama.native import hidden_states, lib
from app.engine.speculative.draft_heads import HeadSpec, PredictedToken
from quantizer.system.errors import EngineError


class BlockContext(HeadContext):
    """A DFlash or DSpark head: layers that attend to the model's hidden states and predict a block at once."""

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native, spec)
        self._injected: Batch | None = None  # as wide as the features are
        lib.llama_set_causal_attn(native.context, spec.is_causal)
        if spec.has_confidence:
            hidden_states().llama_set_embeddings_nextn(native.context, True, True)

    @property
    def n_block(self) -> int:
        return self.spec.n_block

    def predict_blocks(self, chunks: Sequence[Chunk]) -> list[list[PredictedToken]]:
        """Return `n_block` tokens after each chunk, of one token each; an empty list if cells run short."""
        self.catch_up([chunk.sequence_id for chunk in chunks])
        n_at_once = max(1, self._n_rows // self._n_places)
        blocks: list[list[PredictedToken]] = []
        for begin in range(0, len(chunks), n_at_once):
            found = self._predict_group(chunks[begin : begin + n_at_once])
            if not found:
                return []
            blocks += found
        return blocks

    @property
    def _n_places(self) -> int:
        return self.spec.n_block + (0 if self.spec.samples_from_anchor else 1)

    def _predict_group(self, chunks: Sequence[Chunk]) -> list[list[PredictedToken]]:
        masks = [self.spec.mask_token] * (self._n_places - 1)
        blocks = [replace(chunk, tokens=[*chunk.tokens, *masks], n_logits=self._n_places) for chunk in chunks]
        for chunk in chunks:
            self._known(chunk.sequence_id, chunk.position)
        is_done = self.decode(blocks) is DecodeStatus.DONE
        first = 0 if self.spec.samples_from_anchor else 1
        rows = range(0, len(chunks) * self._n_places, self._n_places) if is_done else ()
        found = [[self._predicted(row) for row in range(begin + first, begin + self._n_places)] for begin in rows]
        for chunk in chunks:  # the next tokens of the model take these places
            super().truncate(chunk.sequence_id, chunk.position)
        return found

    def _predicted(self, row: int) -> PredictedToken:
        logits = self.logits(row)
        token = int(logits.argmax())
        if self.spec.has_confidence:
            return PredictedToken(token, float(hidden_states().llama_get_embeddings_nextn_ith(self._context, row)[0]))
        return PredictedToken(token, float(1.0 / np.exp(logits - logits[token]).sum()))

    def _compute(self, waiting: Sequence[WaitingTokens]) -> bool:
        features = np.stack([row for item in waiting for row in item.rows])
        if self._injected is None:
            self._injected = Batch(self._n_rows, features.shape[1], has_tokens=False)
        self._injected.states[: len(features)] = features
        chunks = [Chunk(item.sequence_id, item.position, item.tokens, 0) for item in waiting]
        status = lib.llama_decode(self._context, self._injected.fill(chunks))
        if status < 0:
            raise EngineError(f"llama.cpp failed to compute a draft head (status {status}).", "Load without --draft.")
        return bool(status == DecodeStatus.DONE.value)
