"""Gemma 4's assistant: a head without a cache, whose layers attend to the cells of its model.

Source: common_speculative_impl_draft_mtp (`is_mem_shared`) in common/speculative.cpp, src/models/gemma4-assistant.cpp
and [TAG_KV_CACHE_SHARE_CELLS] in src/llama-kv-cache.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.context import NativeContext
from app.engine.llama.head_backend import Row, WaitingTokens
from app.engine.llama.head_contexts import AutoregressiveContext
from app.engine.llama.native import hidden_states
from app.engine.speculative.cost_model import MAX_DRAFT_TOKENS
from app.engine.speculative.draft_heads import HeadSpec

_UNKNOWN = 0.0
_POSITION = struct.Struct("<Q")  # of the token whose hidden state a saved state holds
_N_KEPT = MAX_DRAFT_TOKENS + 1  # rows of a step: a rejected draft takes the sequence back by no more


class AssistantContext(AutoregressiveContext):
    """The assistant of a model, for its sequences. Nothing waits for it: it needs the hidden state of the last token
    alone, and all tokens of a draft stand at the place of the newest token, as it was trained. llama.cpp ignores what
    is asked of its cache, since the cells are the model's."""

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native, spec)
        self._begun: dict[int, tuple[int, int]] = {}  # where the last draft begins, and its tokens so far

    def follow(self, chunks: Sequence[Chunk], features: Row) -> None:
        end = 0
        for chunk in chunks:
            end += len(chunk.tokens)
            n_kept = min(len(chunk.tokens), _N_KEPT)
            position = chunk.position + len(chunk.tokens) - n_kept
            self._of_model.set(chunk.sequence_id, position, features[end - n_kept : end])
            self._begun.pop(chunk.sequence_id, None)

    def n_waiting(self, sequence_ids: Collection[int]) -> int:  # noqa: ARG002 - of the protocol
        return 0

    def catch_up(self, sequence_ids: Collection[int]) -> None:
        """Do nothing: there is nothing to compute."""

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        placed = []
        for row, chunk in enumerate(chunks):
            begin, n_drafted = self._begun.get(chunk.sequence_id, (chunk.position, 0))
            if begin + n_drafted != chunk.position:
                begin, n_drafted = chunk.position, 0
            known = (self._drafted if n_drafted else self._of_model).before(chunk.sequence_id, chunk.position)
            self._batch.states[row] = _UNKNOWN if known is None else known
            if self._memory.last_position(chunk.sequence_id) != begin - 1:
                return []  # llama.cpp would refuse the batch
            self._begun[chunk.sequence_id] = begin, n_drafted + 1
            placed.append(Chunk(chunk.sequence_id, begin, chunk.tokens, 1))
        if self.decode(placed) is not DecodeStatus.DONE:
            return []
        for row, chunk in enumerate(chunks):
            pointer = hidden_states().llama_get_embeddings_nextn_ith(self._context, row)
            self._drafted.set(chunk.sequence_id, chunk.position, np.ctypeslib.as_array(pointer, (1, self._n_embd)))
        return [self.logits(row) for row in range(len(chunks))]

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:  # noqa: ARG002 - of the protocol
        self._begun.pop(target_id, None)
        if not begin:
            self._of_model.share(source_id, target_id)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        self._begun.pop(sequence_id, None)
        if not n_tokens:
            self._of_model.remove(sequence_id)
        return n_tokens

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:  # noqa: ARG002 - of the protocol
        self._begun.pop(sequence_id, None)
        self._of_model.remove(sequence_id)

    def state_bytes(self, sequence_id: int) -> int:
        last = self._of_model.last(sequence_id)
        return 0 if last is None else _POSITION.size + last[1].nbytes

    def save_state(self, sequence_id: int) -> State:
        last = self._of_model.last(sequence_id)
        return b"" if last is None else _POSITION.pack(last[0]) + last[1].tobytes()

    def restore_state(self, sequence_id: int, state: State) -> bool:
        self.truncate(sequence_id, 0)
        row = np.frombuffer(memoryview(state)[_POSITION.size :], np.float32)
        if row.shape == (self._n_embd,):
            self._of_model.set(sequence_id, _POSITION.unpack_from(state)[0], row[None])
        return True

    def _compute(self, waiting: Sequence[WaitingTokens]) -> bool:  # noqa: ARG002 - of the base, which has what waits
        return True
