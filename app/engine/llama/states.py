"""Sequences with a state (recurrent and hybrid models) in llama.cpp's memory: held copies and rollbacks.

Owns the ids of the copies, and what may be removed without them. Independent of batches and of what is computed.
Source: llama_memory_recurrent in src/llama-memory-recurrent.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.backend import Chunk
from app.engine.llama.native import lib
from app.engine.llama.positions import PositionMap
from app.engine.llama.sequence_memory import SequenceMemory
from app.engine.protocol.messages import Truncation


class _Held(NamedTuple):
    """A copy of a sequence, made when it had `n_tokens`."""

    copy_id: int
    n_tokens: int


class StateMemory:
    """The sequences of `context`. Those from `first_copy_id` on are copies: a copy shares the state of its sequence
    until that is computed further, and then keeps it."""

    def __init__(
        self,
        context: int,
        truncation: Truncation,
        first_copy_id: int,
        positions: PositionMap,
        memory: SequenceMemory,
    ) -> None:
        self._context = context
        self._positions = positions
        self._memory = memory
        self._n_ubatch = lib.llama_n_ubatch(context)
        self._n_rollback = truncation.n_rollback
        self._free_ids = [*range(first_copy_id, first_copy_id + truncation.n_holds)]
        self._held: dict[int, _Held] = {}  # the least recently held first
        self._n_removable: dict[int, int] = {}  # last tokens whose states are still there
        self._rolled_back: set[int] = set()  # whose next batch begins with an earlier state

    def after_batch(self, chunks: Sequence[Chunk], *, is_done: bool) -> None:
        """Note that `chunks` were computed. If that failed, their sequences are lost, or return to where they were held
        at the begin of the batch: what an interrupted batch leaves is of unknown length."""
        n_tokens = sum(len(chunk.tokens) for chunk in chunks)
        lengths = {len(chunk.tokens) for chunk in chunks}
        # Later parts of a batch may move the states that earlier ones computed, but not the earlier states of those.
        is_one_part = len(lengths) == 1 and (len(chunks) == 1 or n_tokens <= self._n_ubatch)
        for chunk in chunks:
            self._rolled_back.discard(chunk.sequence_id)
            n_removable = min(self._n_rollback, len(chunk.tokens) - 1) if is_one_part and chunk.media is None else 0
            self._n_removable[chunk.sequence_id] = n_removable if is_done else 0
            if not is_done:
                self._return(chunk.sequence_id, chunk.position)

    def length(self, sequence_id: int) -> int:
        known = self._positions.length(sequence_id)
        return self._memory.last_position(sequence_id) + 1 if known is None else known

    def hold(self, sequence_id: int) -> None:
        """Keep a copy of the sequence as it is, instead of an earlier one."""
        n_tokens = self.length(sequence_id)
        held = self._held.pop(sequence_id, None)
        if held is None or held.n_tokens != n_tokens:
            held = _Held(self._copy_id() if held is None else held.copy_id, n_tokens)
            self.share(sequence_id, held.copy_id)
        self._held[sequence_id] = held

    def share(self, source_id: int, target_id: int) -> None:
        """Let `target_id` be a copy of the whole of `source_id`."""
        self._settle(source_id)
        self.forget(target_id)
        self._n_removable.pop(source_id, None)  # the earlier states would be those of both
        self._copy(source_id, target_id)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        """Remove the tokens from position `n_tokens` on, or all since the sequence was held; return how many remain."""
        n_removed = self.length(sequence_id) - n_tokens
        if n_tokens and n_removed <= 0:
            return n_tokens + n_removed
        if n_tokens and n_removed <= self._n_removable.pop(sequence_id, 0):
            position = self._positions.position(sequence_id, n_tokens)
            is_removed = self._memory.remove(sequence_id, position)
            assert is_removed, "llama.cpp keeps the states of the last tokens of a batch"
            self._rolled_back.add(sequence_id)
            if sequence_id in self._held and self._held[sequence_id].n_tokens > n_tokens:
                self._drop_copy(sequence_id)
            return n_tokens
        return self._return(sequence_id, n_tokens)

    def forget(self, sequence_id: int) -> None:
        """Drop the copy of a sequence that is removed or replaced."""
        self._n_removable.pop(sequence_id, None)
        self._rolled_back.discard(sequence_id)
        self._drop_copy(sequence_id)

    def _return(self, sequence_id: int, n_tokens: int) -> int:
        """Return to where the sequence was held, if within `n_tokens`, else remove it; return how many remain."""
        self._n_removable.pop(sequence_id, None)
        self._rolled_back.discard(sequence_id)
        held = self._held.get(sequence_id)
        if held is None or held.n_tokens > n_tokens:
            self._memory.remove(sequence_id)
            self._positions.forget(sequence_id)
            self._drop_copy(sequence_id)
            return 0
        self._copy(held.copy_id, sequence_id)
        return held.n_tokens

    def _copy(self, source_id: int, target_id: int) -> None:
        self._memory.remove(target_id)
        self._memory.copy(source_id, target_id)
        self._positions.copy(source_id, target_id)

    def _settle(self, sequence_id: int) -> None:
        """Make an earlier state the sequence's own: llama.cpp would copy the newest one, but saves the right one."""
        if sequence_id not in self._rolled_back:
            return
        self._rolled_back.discard(sequence_id)
        native_id, flags = self._memory.native(sequence_id), lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        n_bytes = lib.llama_state_seq_get_size_ext(self._context, native_id, flags)
        state = (ctypes.c_uint8 * n_bytes)()
        lib.llama_state_seq_get_data_ext(self._context, state, n_bytes, native_id, flags)
        is_set = lib.llama_state_seq_set_data_ext(self._context, state, n_bytes, native_id, flags)
        assert is_set, "a state fits in its own place"

    def _copy_id(self) -> int:
        if not self._free_ids:
            self._drop_copy(next(iter(self._held)))
        copy_id: int = self._free_ids.pop()
        return copy_id

    def _drop_copy(self, sequence_id: int) -> None:
        held = self._held.pop(sequence_id, None)
        if held is not None:
            self._memory.remove(held.copy_id)
            self._positions.forget(held.copy_id)
            self._free_ids.append(held.copy_id)
