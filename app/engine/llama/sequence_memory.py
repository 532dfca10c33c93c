"""The sequences in a context's memory: their ids and positions, held copies of states, buffers for checkpoints.

The engine counts sequences and tokens; llama.cpp has ids and positions of its own, and this translates. `PositionMap`
and `StateBuffers` are pure. Source of what recurrent memory can do: src/llama-memory-recurrent.cpp as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, State
from app.engine.llama.native import lib
from app.engine.messages import Truncation

_COUNTS = struct.Struct("<II")  # of pictures, and of the sequence's tokens
_SPAN = struct.Struct("<IIII")
_MAX_SPARE = 2  # checkpoints of a turn: the end that a sequence leaves, and the end of the prompt
_MAX_SPARE_BYTES = 64 << 20


class _Span(NamedTuple):
    """`n_tokens` from number `begin` on, all at `position`; the next token is at `position` + `n_positions`."""

    begin: int
    n_tokens: int
    position: int
    n_positions: int

    @property
    def end(self) -> int:
        return self.begin + self.n_tokens


class PositionMap:
    """The pictures of each sequence of a model with M-RoPE, whose tokens share one position in time. Pure. The engine
    counts tokens; llama.cpp knows a token by its position, which a picture moves on by fewer than it has tokens. In
    sequences without pictures both are the same."""

    def __init__(self) -> None:
        self._spans: dict[int, list[_Span]] = {}
        self._n_tokens: dict[int, int] = {}  # of sequences with pictures

    def length(self, sequence_id: int) -> int | None:
        """Return the tokens of a sequence with pictures, None for any other."""
        return self._n_tokens.get(sequence_id)

    def position(self, sequence_id: int, n_tokens: int) -> int:
        """Return the position of the token after the first `n_tokens`; within a picture that of its begin."""
        for span in reversed(self._spans.get(sequence_id, ())):
            if n_tokens >= span.end:
                return span.position + span.n_positions + n_tokens - span.end
            if n_tokens > span.begin:
                return span.position
        return n_tokens

    def n_tokens(self, sequence_id: int, position: int) -> int:
        """Return how many tokens of a sequence lie before `position`."""
        for span in reversed(self._spans.get(sequence_id, ())):
            if position > span.position:
                return span.end + max(0, position - span.position - span.n_positions)
        return position

    def n_whole(self, sequence_id: int, n_tokens: int) -> int:
        """Return `n_tokens`, or the begin of the picture that they would cut in two."""
        inside = (span.begin for span in self._spans.get(sequence_id, ()) if span.begin < n_tokens < span.end)
        return next(inside, n_tokens)

    def computed(self, chunk: Chunk, *, has_mrope: bool) -> None:
        """Note the tokens of `chunk`, and the picture that begins with it, if any."""
        sequence_id, media = chunk.sequence_id, chunk.media
        if media is not None and not media.begin and media.chunk.positions is not None and has_mrope:
            position = self.position(sequence_id, chunk.position)
            span = _Span(chunk.position, media.chunk.n_tokens, position, media.chunk.n_positions)
            self._spans.setdefault(sequence_id, []).append(span)
            self._n_tokens[sequence_id] = chunk.position
        if sequence_id in self._n_tokens:
            self._n_tokens[sequence_id] = chunk.position + len(chunk.tokens)

    def truncate(self, sequence_id: int, n_tokens: int) -> None:
        if sequence_id not in self._n_tokens:
            return
        self._spans[sequence_id] = [span for span in self._spans[sequence_id] if span.begin < n_tokens]
        self._n_tokens[sequence_id] = n_tokens
        if not self._spans[sequence_id]:
            del self._spans[sequence_id], self._n_tokens[sequence_id]

    def share(self, source_id: int, target_id: int, end: int) -> None:
        """Note that `target_id` has the first `end` tokens of `source_id`, and of its own what it had after them."""
        source = [span for span in self._spans.get(source_id, ()) if span.begin < end]
        own = [span for span in self._spans.get(target_id, ()) if span.begin >= end]
        n_tokens = max(end, self._n_tokens.get(target_id, 0))
        self.forget(target_id)
        if source or own:
            self._spans[target_id], self._n_tokens[target_id] = [*source, *own], n_tokens

    def copy(self, source_id: int, target_id: int) -> None:
        self.forget(target_id)
        if source_id in self._n_tokens:
            self._spans[target_id] = list(self._spans[source_id])
            self._n_tokens[target_id] = self._n_tokens[source_id]

    def forget(self, sequence_id: int) -> None:
        self._spans.pop(sequence_id, None)
        self._n_tokens.pop(sequence_id, None)

    def encode(self, sequence_id: int) -> bytes:
        """Return the pictures of a sequence as bytes, with which its saved state begins."""
        spans = self._spans.get(sequence_id, [])
        head = _COUNTS.pack(len(spans), self._n_tokens.get(sequence_id, 0))
        return head + b"".join(_SPAN.pack(*span) for span in spans)

    def decode(self, sequence_id: int, state: State) -> int:
        """Give a sequence the pictures at the begin of `state`; return how many bytes they took."""
        view = memoryview(state)
        n_spans, n_tokens = _COUNTS.unpack_from(view)
        begin = _COUNTS.size
        end: int = begin + n_spans * _SPAN.size
        self.forget(sequence_id)
        if n_spans:
            self._spans[sequence_id] = [_Span(*values) for values in _SPAN.iter_unpack(view[begin:end])]
            self._n_tokens[sequence_id] = n_tokens
        return end


class SequenceMemory:
    """The `memory` of a context, a pointer, with `n_sequences`, by the engine's ids and llama.cpp's positions.

    llama.cpp computes the sequences of a recurrent model together only where their ids follow each other in the order
    of the batch (`llama_batch_allocr::split_equal` of src/llama-batch.cpp, 0.3.36), and else reads all weights once for
    each run of ids. So a sequence has an id of llama.cpp's besides the engine's, which changes where that helps.
    """

    def __init__(self, memory: int, n_sequences: int) -> None:
        self._memory = memory
        self._native = [*range(n_sequences)]

    @property
    def supports_shift(self) -> bool:
        """Whether positions can be moved, in a memory that has any."""
        return bool(self._memory and lib.llama_memory_can_shift(self._memory))

    def native(self, sequence_id: int) -> int:
        """Return llama.cpp's id of a sequence, valid until `line_up`."""
        native_id: int = self._native[sequence_id]
        return native_id

    def first_position(self, sequence_id: int) -> int:
        """Return the first position that is held, -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_min(self._memory, self._native[sequence_id]))

    def last_position(self, sequence_id: int) -> int:
        """Return the last position that is held, -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._native[sequence_id]))

    def remove(self, sequence_id: int, begin: int = -1, end: int = -1) -> bool:
        """Remove the positions from `begin` up to `end`, by default all; return whether that was possible."""
        return bool(lib.llama_memory_seq_rm(self._memory, self._native[sequence_id], begin, end))

    def copy(self, source_id: int, target_id: int, begin: int = -1, end: int = -1) -> None:
        """Let `target_id` share the cells of `source_id` from `begin` up to `end`, by default all."""
        source, target = self._native[source_id], self._native[target_id]
        lib.llama_memory_seq_cp(self._memory, source, target, begin, end)

    def move(self, sequence_id: int, begin: int, n_positions: int) -> None:
        lib.llama_memory_seq_add(self._memory, self._native[sequence_id], begin, -1, n_positions)

    def line_up(self, sequence_ids: Sequence[int]) -> None:
        """Give the sequences of a batch, in its order, ids that follow each other. For memory without attention. That
        takes a few writes. Exchanging two ids needs a third, empty one; without it the batch is computed in parts."""
        first = first_in_line([*map(self.native, sequence_ids)], len(self._native))
        for wanted, sequence_id in enumerate(sequence_ids, start=first):
            if self._native[sequence_id] != wanted and not self._exchange(sequence_id, self._native.index(wanted)):
                return

    def _exchange(self, one: int, other: int) -> bool:
        """Exchange the ids of two sequences; return whether that was possible."""
        empty = [sequence_id for sequence_id in range(len(self._native)) if self.last_position(sequence_id) < 0]
        if not empty:
            return False
        if one in empty:
            moves = [(other, one)]
        elif other in empty:
            moves = [(one, other)]
        else:
            moves = [(one, empty[0]), (other, one), (empty[0], other)]
        for source, target in moves:
            self.copy(source, target)
            self.remove(source)
        self._native[one], self._native[other] = self._native[other], self._native[one]
        return True


def first_in_line(native_ids: Sequence[int], n_sequences: int) -> int:
    """Return the first of consecutive ids below `n_sequences` with which most of `native_ids` stay as they are."""
    n_most = n_sequences - len(native_ids)
    places = Counter(native_id - index for index, native_id in enumerate(native_ids))
    return max((place for place in places if 0 <= place <= n_most), key=places.__getitem__, default=0)


class _Held(NamedTuple):
    """A copy of a sequence, made when it had `n_tokens`."""

    copy_id: int
    n_tokens: int


class StateMemory:
    """The sequences of a recurrent or hybrid model, whose states cannot be cut: held copies and rollbacks instead. Ids
    from `first_copy_id` on are copies: a copy shares the state of its sequence until that is computed further, and then
    keeps it."""

    def __init__(
        self, context: int, truncation: Truncation, first_copy_id: int, positions: PositionMap, memory: SequenceMemory
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
        """Note that `chunks` were computed. After a failure their sequences return to where they were held, or are
        lost: llama.cpp does not report how much of an interrupted batch it computed."""
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
            if held is None and not self._free_ids:
                self._drop_copy(next(iter(self._held)))
            held = _Held(self._free_ids.pop() if held is None else held.copy_id, n_tokens)
            self.share(sequence_id, held.copy_id)
        self._held[sequence_id] = held

    def share(self, source_id: int, target_id: int) -> None:
        """Let `target_id` be a copy of the whole of `source_id`."""
        if source_id in self._rolled_back:
            # llama_memory_seq_cp copies the newest state, but saving takes the one that the sequence returned to: so
            # that is restored in place first.
            self._rolled_back.discard(source_id)
            native_id, flags = self._memory.native(source_id), lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
            n_bytes = lib.llama_state_seq_get_size_ext(self._context, native_id, flags)
            state = (ctypes.c_uint8 * n_bytes)()
            lib.llama_state_seq_get_data_ext(self._context, state, n_bytes, native_id, flags)
            is_set = lib.llama_state_seq_set_data_ext(self._context, state, n_bytes, native_id, flags)
            assert is_set, "a state fits in its own place"
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

    def _drop_copy(self, sequence_id: int) -> None:
        held = self._held.pop(sequence_id, None)
        if held is not None:
            self._memory.remove(held.copy_id)
            self._positions.forget(held.copy_id)
            self._free_ids.append(held.copy_id)


class StateBuffers:
    """Buffers for checkpoints, provided in the pauses between answers. Pure. Writing to memory that the system has yet
    to provide takes far longer than the copy: 20 to 45 ms beside 2 ms for the 19 MiB of Qwen3.5 0.8B, in the middle of
    an answer. All checkpoints of a model are about as large."""

    def __init__(self) -> None:
        self._spare: list[NDArray[np.uint8]] = []
        self._n_bytes = 0  # of the last one

    @property
    def n_spare(self) -> int:
        return len(self._spare)

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return a buffer, shape (n_bytes,), whose content is undefined; the caller keeps it."""
        if n_bytes != self._n_bytes:
            self._spare, self._n_bytes = [], n_bytes
        return self._spare.pop() if self._spare else np.empty(n_bytes, np.uint8)

    def prepare(self) -> None:
        """Provide memory for the next buffers, if they are as large as the last one."""
        n_most = min(_MAX_SPARE, _MAX_SPARE_BYTES // self._n_bytes) if self._n_bytes else 0
        while len(self._spare) < n_most:
            buffer = np.empty(self._n_bytes, np.uint8)
            buffer[:: mmap.PAGESIZE] = 0
            self._spare.append(buffer)
