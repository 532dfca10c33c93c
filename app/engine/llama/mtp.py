"""A model's multi-token-prediction (MTP) layer: its context over the same weights, and a backend with both contexts.

Owns the MTP context and its input: each token with the model's hidden state before it. Owns the format of a saved state
of both. Source of the pairing: common_speculative_impl_draft_mtp in llama.cpp common/speculative.cpp as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.adapters import LlamaAdapters
from app.engine.llama.context import Batch, LlamaBackend
from app.engine.llama.native import hidden_states, lib
from app.engine.llama.weight_layouts import StepWeights
from app.engine.protocol.messages import BackendFacts
from app.engine.request import AdapterSet

__all__ = ["HiddenRows", "MtpBackend", "MtpContext", "Row"]

Row = NDArray[np.float32]
_LENGTH_BYTES = 8  # of the model's own part of a state, which comes first


class HiddenRows:
    """The hidden states of the last tokens of each sequence, rows of float32. Pure: no native memory."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Row]] = {}  # position of the first row, and the rows

    def set(self, sequence_id: int, position: int, rows: Row) -> None:
        """Store a copy of `rows`, shape (n, n_embd), of the tokens from `position` on, instead of earlier ones.

        The row before them stays: a rejected draft may take the sequence back to its begin.
        """
        before = self.before(sequence_id, position)
        rows = rows.copy() if before is None else np.concatenate((before[np.newaxis], rows))
        self._rows[sequence_id] = position - (before is not None), rows

    def before(self, sequence_id: int, position: int) -> Row | None:
        """Return the row of the token before `position`, None if it is not stored."""
        begin, rows = self._rows.get(sequence_id, (position, ()))
        index = position - 1 - begin
        return rows[index] if 0 <= index < len(rows) else None

    def share(self, source_id: int, target_id: int) -> None:
        """Give a new copy of a sequence the same rows."""
        self.remove(target_id)
        if source_id in self._rows:
            self._rows[target_id] = self._rows[source_id]

    def remove(self, sequence_id: int) -> None:
        self._rows.pop(sequence_id, None)

    def clear(self) -> None:
        self._rows.clear()


class MtpContext(LlamaBackend):
    """A `MtpHead` with the model's sequences, by the same ids and positions.

    If it lacks a sequence's beginning (restored without it, or no free cells) it continues anyway: drafts are verified.
    """

    def __init__(self, model: int, context: int, facts: BackendFacts, adapters: LlamaAdapters) -> None:
        super().__init__(model, context, facts, adapters)
        n_embd = lib.llama_model_n_embd_out(model)
        self._shape = (n_embd,)
        self._batch = Batch(facts.n_batch, n_embd)
        self._computed = HiddenRows()  # by the model
        self._drafted = HiddenRows()  # by the MTP layer itself, after the model's tokens
        hidden_states().llama_set_embeddings_nextn(context, True, True)

    def follow(self, chunks: Sequence[Chunk], hidden: Row) -> None:
        """Compute the tokens of the model's last batch, with its hidden states of all, shape (n_tokens, n_embd)."""
        self._drafted.clear()
        end = 0
        for chunk in chunks:
            begin, end = end, end + len(chunk.tokens)
            self._align(chunk, begin)
            self._batch.states[begin + 1 : end] = hidden[begin : end - 1]
            # The next token may follow any that was verified, or the one before the batch.
            n_rows = len(chunk.tokens) if chunk.n_logits > 1 else 1
            self._computed.set(chunk.sequence_id, chunk.position + end - begin - n_rows, hidden[end - n_rows : end])
        if self.decode([replace(chunk, n_logits=0) for chunk in chunks]) is not DecodeStatus.DONE:
            for chunk in chunks:
                self.truncate(chunk.sequence_id, 0)

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        for row, chunk in enumerate(chunks):
            self._align(chunk, row)
        if self.decode(chunks) is not DecodeStatus.DONE:
            return []
        for row, chunk in enumerate(chunks):
            pointer = hidden_states().llama_get_embeddings_nextn_ith(self._context, row)
            self._drafted.set(chunk.sequence_id, chunk.position, np.ctypeslib.as_array(pointer, (1, *self._shape)))
        return [self.logits(row) for row in range(len(chunks))]

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share_cells(source_id, target_id, begin, end)
        if begin == 0:
            self._computed.share(source_id, target_id)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        self._computed.remove(sequence_id)

    def restore_state(self, sequence_id: int, state: State) -> bool:
        self._computed.remove(sequence_id)
        return super().restore_state(sequence_id, state)

    def _align(self, chunk: Chunk, row: int) -> None:
        """Truncate the sequence to the begin of `chunk`, and put the hidden state before that into `row`.

        Later tokens were drafts. A first token, or one without a stored state before it, gets zeros.
        """
        end = lib.llama_memory_seq_pos_max(self._memory, chunk.sequence_id) + 1
        if end != chunk.position:
            self.truncate(chunk.sequence_id, chunk.position if end > chunk.position else 0)
        known = (rows.before(chunk.sequence_id, chunk.position) for rows in (self._drafted, self._computed))
        self._batch.states[row] = next((state for state in known if state is not None), 0.0)


class MtpBackend(LlamaBackend):
    """A backend with an MTP context, which it owns; every change of its cache is applied to both."""

    def __init__(
        self,
        model: int,
        context: int,
        facts: BackendFacts,
        adapters: LlamaAdapters,
        mtp: MtpContext,
        weights: StepWeights | None = None,
    ) -> None:
        super().__init__(model, context, replace(facts, layout=f"{facts.layout}-mtp"), adapters, weights)
        self.mtp = mtp
        self._owned.callback(mtp.close)
        self._n_embd = lib.llama_model_n_embd_out(model)
        hidden_states().llama_set_embeddings_nextn(context, True, False)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = super().decode(chunks)
        if status is DecodeStatus.DONE:
            shape = (sum(len(chunk.tokens) for chunk in chunks), self._n_embd)
            pointer = hidden_states().llama_get_embeddings_nextn(self._context)
            self.mtp.follow(chunks, np.ctypeslib.as_array(pointer, shape))
        return status

    def set_adapters(self, adapters: AdapterSet) -> None:
        super().set_adapters(adapters)
        self.mtp.set_adapters(adapters)

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share_cells(source_id, target_id, begin, end)
        self.mtp.share_cells(source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        n_left = super().truncate(sequence_id, n_tokens)
        # Where a state went back further, the layer keeps what it has: drafts continue the accepted tokens.
        self.mtp.truncate(sequence_id, n_tokens if n_left else 0)
        return n_left

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        self.mtp.shift(sequence_id, n_keep, n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        return _LENGTH_BYTES + super().state_bytes(sequence_id) + self.mtp.state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> State:
        own, predicting = super().save_state(sequence_id), self.mtp.save_state(sequence_id)
        parts = (len(own).to_bytes(_LENGTH_BYTES, "little"), own, predicting)
        return np.concatenate([np.frombuffer(part, np.uint8) for part in parts]).data

    def restore_state(self, sequence_id: int, state: State) -> bool:
        view = memoryview(state)
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
        is_restored = super().restore_state(sequence_id, view[_LENGTH_BYTES:end])
        if is_restored:
            self.mtp.restore_state(sequence_id, view[end:])
        return is_restored

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        if not super().restore_checkpoint(sequence_id, source_id, n_tokens, checkpoint):
            return False
        if source_id is not None and source_id != sequence_id:
            self.mtp.share_cells(source_id, sequence_id, 0, n_tokens)
        else:
            self.mtp.truncate(sequence_id, n_tokens)
        return True
