"""A model's context with a draft head: both caches change together, and the head gets the model's hidden states.

`head_contexts` has the kinds of heads. Owns what a head has computed of each sequence, the hidden states that wait for
it, and the format of a saved state of both. Source of the pairing: common_speculative_impl_draft_mtp, _eagle3 and
_dflash in llama.cpp common/speculative.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.context import LlamaBackend, NativeContext
from app.engine.llama.native import hidden_states, layer_inputs, lib
from app.engine.request import AdapterSet
from app.engine.speculative.draft_heads import HeadSpec

Row = NDArray[np.float32]
_TOKEN = np.dtype("<i4")
# A larger share of a batch is part of a long prompt. That of a next turn waits as an answer does: computed at once, all
# since the last draft would come before its first token (104 ms, 758 tokens of Qwen3.5 0.8B).
_ANSWER_SHARE = 2
# Batches that may wait in an answer. To compute one takes as long as several steps (200 ms, Qwen3.5 0.8B), and a draft
# or a probe comes long before that, or never.
_MAX_ANSWER_BATCHES = 4
# Of a head's saved state: `begin`, `n_computed`, tokens that wait, bytes of their rows and of the last computed row.
_HEADER = struct.Struct("<QQQQQ")
STATE_LENGTH = struct.Struct("<Q")  # of a part of a state: the model's own comes first


@dataclass(slots=True)
class Followed:
    """What a head has of a sequence: computed tokens from `begin` to `n_computed`, then `tokens` that wait, with the
    model's hidden states, a row each."""

    begin: int
    n_computed: int
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.n_computed + len(self.tokens)

    def truncate(self, n_tokens: int) -> None:
        n_waiting = max(0, n_tokens - self.n_computed)
        del self.tokens[n_waiting:], self.rows[n_waiting:]
        self.n_computed = min(self.n_computed, n_tokens)


@dataclass(frozen=True, slots=True)
class WaitingTokens:
    """The first tokens of a sequence that its head has not computed, from `position` on, and their hidden states."""

    sequence_id: int
    position: int
    tokens: list[int]
    rows: list[Row]


class HeadContext(LlamaBackend):
    """A head with the model's sequences, by the same ids and positions. It computes what it follows when it drafts, or
    as soon as a batch of a prompt waits: steps without drafts cost it nothing. If it lacks a sequence's beginning
    (restored without it, or no free cells) it continues anyway: drafts are verified."""

    reads_output = False  # whether the input behind the last layer is the model's output, or one more layer's input

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native)
        self.spec = spec
        if spec.has_windows_only:
            # llama.cpp ends the process where it moves the positions of such a cache: that of its other layers, which
            # has none, is moved too, by an input that nothing allocates (`set_input_k_shift` in src/llama-kv-cache.cpp)
            self.facts = replace(self.facts, supports_shift=False)
        self._n_embd = lib.llama_model_n_embd_out(native.model)  # of hidden states: an assistant's are its model's
        self._n_rows = native.facts.n_batch
        self._followed: dict[int, Followed] = {}

    def follow(self, chunks: Sequence[Chunk], features: Row) -> None:
        """Take the tokens of the model's last batch with their hidden states, shape (n_tokens, width)."""
        end = 0
        for chunk in chunks:
            begin, end = end, end + len(chunk.tokens)
            followed = self._known(chunk.sequence_id, chunk.position)
            followed.tokens.extend(chunk.tokens)
            followed.rows.extend(features[begin:end])
            is_answer = len(chunk.tokens) <= self._n_rows // _ANSWER_SHARE
            if len(followed.tokens) >= self._n_rows * (_MAX_ANSWER_BATCHES if is_answer else 1):
                self.catch_up([chunk.sequence_id])

    def n_waiting(self, sequence_ids: Collection[int]) -> int:
        known = (self._followed.get(sequence_id) for sequence_id in sequence_ids)
        return sum(len(followed.tokens) for followed in known if followed is not None)

    def catch_up(self, sequence_ids: Collection[int]) -> None:
        """Compute all tokens that wait; a sequence without cells is forgotten."""
        while waiting := list(self._next_waiting(sequence_ids)):
            is_done = self._compute(waiting)
            for item in waiting:
                if not is_done:
                    self._forget(item.sequence_id)
                    continue
                followed = self._followed[item.sequence_id]
                del followed.tokens[: len(item.tokens)], followed.rows[: len(item.tokens)]
                followed.n_computed += len(item.tokens)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Ignore adapters, which change the model alone."""

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        source, target = self._followed.get(source_id), self._followed.get(target_id)
        if target is not None:  # both have computed these tokens; what waits is computed twice
            is_computed = source is not None and min(source.n_computed, target.n_computed) >= end
            if source is not None and is_computed and source.begin == target.begin:
                super().share_cells(source_id, target_id, begin, end)
        elif source is not None and begin == 0 and source.begin < end:
            copy = replace(source, tokens=list(source.tokens), rows=list(source.rows))
            self._followed[target_id] = copy
            copy.truncate(end)
            super().share_cells(source_id, target_id, 0, copy.n_computed)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        followed = self._followed.get(sequence_id)
        if followed is None or n_tokens <= followed.begin:
            self._forget(sequence_id)
            return 0
        followed.truncate(n_tokens)
        return super().truncate(sequence_id, min(n_tokens, self._n_kept(sequence_id, followed)))

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        self.catch_up([sequence_id])
        followed = self._followed.get(sequence_id)
        if followed is None or not self.facts.supports_shift or followed.begin > n_keep:
            self._forget(sequence_id)
            return
        super().shift(sequence_id, n_keep, n_discard)
        followed.n_computed -= n_discard

    def state_bytes(self, sequence_id: int) -> int:
        followed = self._followed.get(sequence_id, Followed(0, 0))
        n_waiting_bytes = sum(_TOKEN.itemsize + row.nbytes for row in followed.rows)
        own = _HEADER.size + n_waiting_bytes + len(self._last_row(sequence_id))
        return own + super().state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> State:
        followed, last = self._followed.get(sequence_id, Followed(0, 0)), self._last_row(sequence_id)
        # What waits is saved, too: computing it at once would take longer.
        tokens, rows = np.array(followed.tokens, _TOKEN).tobytes(), b"".join(row.tobytes() for row in followed.rows)
        header = _HEADER.pack(followed.begin, followed.n_computed, len(followed.tokens), len(rows), len(last))
        before = b"".join((header, tokens, rows, last, self._saved_positions(sequence_id)))
        return self._save(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE, before=before)

    def restore_state(self, sequence_id: int, state: State) -> bool:
        self._forget(sequence_id)
        begin, n_computed, n_waiting, n_rows_bytes, n_last_bytes = _HEADER.unpack_from(state)
        sizes = np.cumsum([_HEADER.size, n_waiting * _TOKEN.itemsize, n_rows_bytes, n_last_bytes]).tolist()
        tokens, rows, last = (memoryview(state)[one:other] for one, other in pairwise(sizes))
        own = memoryview(state)[sizes[-1] :]
        if n_computed > begin and not super().restore_state(sequence_id, own):
            return False
        waiting = np.frombuffer(rows, np.float32).reshape(n_waiting, -1) if n_waiting else ()
        self._followed[sequence_id] = Followed(begin, n_computed, np.frombuffer(tokens, _TOKEN).tolist(), [*waiting])
        self._set_last_row(sequence_id, n_computed, bytes(last))
        return True

    @abstractmethod
    def _compute(self, waiting: Sequence[WaitingTokens]) -> bool:
        """Compute tokens of several sequences, a batch at most. Return False if cells ran short."""

    def _n_kept(self, sequence_id: int, followed: Followed) -> int:  # noqa: ARG002 - some heads compute ahead
        """Return the position from which on the cells are drafts."""
        return followed.n_computed

    def _last_row(self, sequence_id: int) -> bytes:  # noqa: ARG002 - only some heads have one
        """Return the hidden state of the last computed token, which a saved state includes."""
        return b""

    def _set_last_row(self, sequence_id: int, n_computed: int, row: bytes) -> None:
        """Restore the hidden state of the token before position `n_computed`."""

    def _known(self, sequence_id: int, position: int) -> Followed:
        """Return what is known of the tokens before `position`; later ones were rejected drafts."""
        followed = self._followed.get(sequence_id)
        if followed is not None and followed.end > position:
            self.truncate(sequence_id, position)
            followed = self._followed.get(sequence_id)
        if followed is None or followed.end != position:
            self._forget(sequence_id)
            followed = self._followed[sequence_id] = Followed(position, position)
        return followed

    def _forget(self, sequence_id: int) -> None:
        self._followed.pop(sequence_id, None)
        super().truncate(sequence_id, 0)

    def _next_waiting(self, sequence_ids: Collection[int]) -> Iterator[WaitingTokens]:
        n_left = self._n_rows
        for sequence_id in sequence_ids:
            followed = self._followed.get(sequence_id)
            if followed is not None and followed.tokens and n_left:
                yield WaitingTokens(sequence_id, followed.n_computed, followed.tokens[:n_left], followed.rows[:n_left])
                n_left -= min(n_left, len(followed.tokens))


class HeadBackend(LlamaBackend):
    """A backend with a head, which it owns; every change of its cache is applied to both."""

    def __init__(self, native: NativeContext, head: HeadContext) -> None:
        super().__init__(native)
        model, context = native.model, native.context
        self.head = head
        self._owned.callback(head.close)
        self._n_layers = lib.llama_model_n_layer(model)
        self._n_embd, self._n_embd_out = lib.llama_model_n_embd(model), lib.llama_model_n_embd_out(model)
        record_inputs, self._inputs_of = layer_inputs()
        for layer in head.spec.target_layers:
            if self._is_output(layer):
                hidden_states().llama_set_embeddings_nextn(context, True, False)
            else:
                record_inputs(context, layer, True)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = super().decode(chunks)
        has_tokens = chunks[0].media is None  # a head reads no picture: it begins anew after one
        if status is DecodeStatus.DONE and has_tokens:
            n_tokens = sum(len(chunk.tokens) for chunk in chunks)
            hidden = [self._hidden(layer, n_tokens) for layer in self.head.spec.target_layers]
            self.head.follow(chunks, np.concatenate(hidden, axis=1))  # a copy: the next batch overwrites them
        return status

    def set_adapters(self, adapters: AdapterSet) -> None:
        super().set_adapters(adapters)
        self.head.set_adapters(adapters)

    def set_threads(self, n_threads: int) -> None:
        super().set_threads(n_threads)
        self.head.set_threads(n_threads)

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share_cells(source_id, target_id, begin, end)
        self.head.share_cells(source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        n_left = super().truncate(sequence_id, n_tokens)
        # Where a state went back further, the head keeps what it has: drafts continue the accepted tokens.
        self.head.truncate(sequence_id, n_tokens if n_left else 0)
        return n_left

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        self.head.shift(sequence_id, n_keep, n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        return STATE_LENGTH.size + super().state_bytes(sequence_id) + self.head.state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> State:
        length, of_head = STATE_LENGTH.pack(super().state_bytes(sequence_id)), self.head.save_state(sequence_id)
        before = length + self._saved_positions(sequence_id)
        return self._save(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE, before=before, after=of_head)

    def restore_state(self, sequence_id: int, state: State) -> bool:
        view = memoryview(state)
        end = STATE_LENGTH.size + STATE_LENGTH.unpack_from(view)[0]
        is_restored = super().restore_state(sequence_id, view[STATE_LENGTH.size : end])
        if is_restored:
            self.head.restore_state(sequence_id, view[end:])
        return is_restored

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        if not super().restore_checkpoint(sequence_id, source_id, n_tokens, checkpoint):
            return False
        if source_id is not None and source_id != sequence_id:
            self.head.share_cells(source_id, sequence_id, 0, n_tokens)
        else:
            self.head.truncate(sequence_id, n_tokens)
        return True

    def _hidden(self, layer: int, n_tokens: int) -> Row:
        """Return llama.cpp's own memory of a layer's hidden states, shape (n_tokens, width)."""
        if self._is_output(layer):
            pointer: Any = hidden_states().llama_get_embeddings_nextn(self._context)
            return np.ctypeslib.as_array(pointer, (n_tokens, self._n_embd_out))
        return np.ctypeslib.as_array(self._inputs_of(self._context, layer), (n_tokens, self._n_embd))

    def _is_output(self, layer: int) -> bool:
        """Return whether `layer` stands for the output of the last one; block heads get that as one more input."""
        return layer == self._n_layers and self.head.reads_output
