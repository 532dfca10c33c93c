"""Contexts of draft heads: a model's own multi-token-prediction (MTP) layer, and EAGLE-3, DFlash and DSpark heads.

Owns what a head has computed of each sequence, the model's hidden states that wait for it, and the format of its saved
state. Independent of where the hidden states come from. Source of the pairing: common_speculative_impl_draft_mtp,
_eagle3 and _dflash in llama.cpp common/speculative.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.context import Batch, LlamaBackend, NativeContext
from app.engine.llama.native import hidden_states, lib
from app.engine.request import AdapterSet
from app.engine.speculative.draft_heads import HeadSpec, PredictedToken
from quantizer.errors import EngineError

__all__ = [
    *("AutoregressiveContext", "BlockContext", "EagleContext", "Followed", "HeadContext", "HiddenRows", "MtpContext"),
    "Row",
]

Row = NDArray[np.float32]
_TOKEN = np.dtype("<i4")
_UNKNOWN = 0.0  # the hidden state before a first token, or one in the middle of a shared or restored text
_ANSWER_SHARE = 8  # a larger share of a batch is part of a prompt
# Batches that may wait in an answer. To compute one takes as long as several steps (200 ms, Qwen3.5 0.8B), and a draft
# or a probe comes long before that, or never.
_MAX_ANSWER_BATCHES = 4
# Of a head's saved state: `begin`, `n_computed`, tokens that wait, bytes of their rows and of the last computed row.
_HEADER = struct.Struct("<QQQQQ")


@dataclass(slots=True)
class Followed:
    """What a head knows of a sequence: it has computed the tokens from `begin` to `n_computed`, and has the hidden
    states of the `tokens` after them, a row each."""

    begin: int
    n_computed: int
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.n_computed + len(self.tokens)

    def truncate(self, n_tokens: int) -> None:
        """Forget the tokens from position `n_tokens` on."""
        n_waiting = max(0, n_tokens - self.n_computed)
        del self.tokens[n_waiting:], self.rows[n_waiting:]
        self.n_computed = min(self.n_computed, n_tokens)

    def copy(self) -> Followed:
        return replace(self, tokens=list(self.tokens), rows=list(self.rows))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The first tokens of a sequence that its head has not computed, from `position` on, and their hidden states."""

    sequence_id: int
    position: int
    tokens: list[int]
    rows: list[Row]


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


class HeadContext(LlamaBackend):
    """A head with the model's sequences, by the same ids and positions.

    It computes what it follows when it drafts, or as soon as a batch of a prompt waits: steps without drafts cost it
    nothing. If it lacks a sequence's beginning (restored without it, or no free cells) it continues anyway:
    drafts are verified.
    """

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native)
        self.spec = spec
        self._n_embd = lib.llama_model_n_embd(native.model)
        self._n_rows = native.facts.n_batch
        self._followed: dict[int, Followed] = {}

    def follow(self, chunks: Sequence[Chunk], features: Row) -> None:
        """Take the tokens of the model's last batch, with its hidden states of all, shape (n_tokens, width)."""
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
                if is_done:
                    self._computed(item)
                else:
                    self._forget(item.sequence_id)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Ignore adapters, which change the model alone."""

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        source, target = self._followed.get(source_id), self._followed.get(target_id)
        if target is not None:  # both have computed these tokens; what waits is computed twice
            is_computed = source is not None and min(source.n_computed, target.n_computed) >= end
            if source is not None and is_computed and source.begin == target.begin:
                super().share_cells(source_id, target_id, begin, end)
        elif source is not None and begin == 0 and source.begin < end:
            copy = self._followed[target_id] = source.copy()
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
        before = self._saved_rows(sequence_id) + self._saved_positions(sequence_id)
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

    def _saved_rows(self, sequence_id: int) -> bytes:
        """Return the begin of a saved state: what waits would take longer to compute than to save."""
        followed, last = self._followed.get(sequence_id, Followed(0, 0)), self._last_row(sequence_id)
        tokens, rows = np.array(followed.tokens, _TOKEN).tobytes(), b"".join(row.tobytes() for row in followed.rows)
        header = _HEADER.pack(followed.begin, followed.n_computed, len(followed.tokens), len(rows), len(last))
        return b"".join((header, tokens, rows, last))

    @abstractmethod
    def _compute(self, waiting: Sequence[_Waiting]) -> bool:
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

    def _computed(self, item: _Waiting) -> None:
        followed = self._followed[item.sequence_id]
        del followed.tokens[: len(item.tokens)], followed.rows[: len(item.tokens)]
        followed.n_computed += len(item.tokens)

    def _next_waiting(self, sequence_ids: Collection[int]) -> Iterator[_Waiting]:
        n_left = self._n_rows
        for sequence_id in sequence_ids:
            followed = self._followed.get(sequence_id)
            if followed is not None and followed.tokens and n_left:
                yield _Waiting(sequence_id, followed.n_computed, followed.tokens[:n_left], followed.rows[:n_left])
                n_left -= min(n_left, len(followed.tokens))


class AutoregressiveContext(HeadContext):
    """A head of one layer that gets each token with the hidden state of the token before it, and predicts the next.

    Drafts continue with the head's own hidden states.
    """

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native, spec)
        self._batch = Batch(self._n_rows, self._n_embd)
        self._of_model = HiddenRows()  # of the model's tokens, as the layer gets them
        self._drafted = HiddenRows()  # of the head's own
        self._ahead: dict[int, tuple[int, int]] = {}  # position and token that the last draft began with
        hidden_states().llama_set_embeddings_nextn(native.context, True, True)

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Return the logits after each chunk, of one token each; an empty list if cells run short."""
        begun = [chunk for chunk in chunks if self._begins(chunk)]
        self.catch_up([chunk.sequence_id for chunk in begun])
        for chunk in begun:
            self._drafted.remove(chunk.sequence_id)
            self._ahead.pop(chunk.sequence_id, None)
            followed = self._known(chunk.sequence_id, chunk.position)
            super().truncate(chunk.sequence_id, followed.end)
        for row, chunk in enumerate(chunks):
            self._batch.states[row] = self._row_before(chunk.sequence_id, chunk.position)
        if self.decode(chunks) is not DecodeStatus.DONE:
            for chunk in chunks:
                self._forget(chunk.sequence_id)
            return []
        for row, chunk in enumerate(chunks):
            pointer = hidden_states().llama_get_embeddings_nextn_ith(self._context, row)
            self._drafted.set(chunk.sequence_id, chunk.position, np.ctypeslib.as_array(pointer, (1, self._n_embd)))
        for chunk in begun:
            self._ahead[chunk.sequence_id] = chunk.position, chunk.tokens[0]
        return [self.logits(row) for row in range(len(chunks))]

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        is_new = target_id not in self._followed
        super().share_cells(source_id, target_id, begin, end)
        if is_new and target_id in self._followed:
            self._of_model.share(source_id, target_id)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        if self._ahead.get(sequence_id, (-1, 0))[0] >= n_tokens:
            del self._ahead[sequence_id]
        return super().truncate(sequence_id, n_tokens)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().truncate(sequence_id, self._followed.get(sequence_id, Followed(0, 0)).end)
        self._ahead.pop(sequence_id, None)
        super().shift(sequence_id, n_keep, n_discard)
        self._of_model.remove(sequence_id)

    def _begins(self, chunk: Chunk) -> bool:
        followed = self._followed.get(chunk.sequence_id)
        return followed is None or followed.end >= chunk.position

    def _compute(self, waiting: Sequence[_Waiting]) -> bool:
        rows = self._layer_input(np.stack([row for item in waiting for row in item.rows]))
        chunks: list[Chunk] = []
        n_states = end = 0
        for item in waiting:
            begin, end = end, end + len(item.tokens)
            if n_left_out := self._n_left_out(item):
                states = rows[begin + n_left_out - 1 : end - 1]
            else:
                before = self._row_before(item.sequence_id, item.position)
                states = np.vstack([np.broadcast_to(before, (1, self._n_embd)), rows[begin : end - 1]])
            LlamaBackend.truncate(self, item.sequence_id, item.position + n_left_out)
            if tokens := item.tokens[n_left_out:]:
                chunks.append(Chunk(item.sequence_id, item.position + n_left_out, tokens, 0))
                self._batch.states[n_states : n_states + len(tokens)] = states
                n_states += len(tokens)
            self._drafted.remove(item.sequence_id)
            self._of_model.set(item.sequence_id, item.position, rows[begin:end])
        return not chunks or self.decode(chunks) is DecodeStatus.DONE

    def _layer_input(self, features: Row) -> Row:
        """Return what the layer gets of the model's hidden states, shape (n, n_embd) of (n, width)."""
        return features

    def _n_left_out(self, item: _Waiting) -> int:
        """Return 1 for a token that the last draft began with: the layer has computed it."""
        return int(self._ahead.pop(item.sequence_id, None) == (item.position, item.tokens[0]))

    def _n_kept(self, sequence_id: int, followed: Followed) -> int:
        is_ahead = self._ahead.get(sequence_id, (-1, 0))[0] == followed.n_computed
        return followed.n_computed + int(is_ahead)

    def _row_before(self, sequence_id: int, position: int) -> Row | float:
        known = (rows.before(sequence_id, position) for rows in (self._drafted, self._of_model))
        return next((row for row in known if row is not None), _UNKNOWN)

    def _last_row(self, sequence_id: int) -> bytes:
        followed = self._followed.get(sequence_id)
        row = self._of_model.before(sequence_id, followed.n_computed) if followed else None
        return b"" if row is None else row.tobytes()

    def _set_last_row(self, sequence_id: int, n_computed: int, row: bytes) -> None:
        rows = np.frombuffer(row, np.float32)
        if rows.shape == (self._n_embd,):
            self._of_model.set(sequence_id, n_computed - 1, rows[None])

    def _forget(self, sequence_id: int) -> None:
        super()._forget(sequence_id)
        self._ahead.pop(sequence_id, None)
        self._of_model.remove(sequence_id)
        self._drafted.remove(sequence_id)


class MtpContext(AutoregressiveContext):
    """The MTP layer of the model itself, over the same weights and with the same adapters."""

    def set_adapters(self, adapters: AdapterSet) -> None:
        LlamaBackend.set_adapters(self, adapters)


class EagleContext(AutoregressiveContext):
    """An EAGLE-3 head, whose encoder fuses the hidden states of several layers. A first token has none before it and is
    left out."""

    _encoder_input: Batch | None = None  # as wide as the features are

    def _layer_input(self, features: Row) -> Row:
        if self._encoder_input is None:
            self._encoder_input = Batch(self._n_rows, features.shape[1], has_tokens=False)
        self._encoder_input.states[: len(features)] = features
        # Encoding stores nothing, but positions must follow those of the sequence.
        position = lib.llama_memory_seq_pos_max(self._memory, 0) + 1
        chunk = Chunk(0, position, range(len(features)), len(features))
        if status := lib.llama_encode(self._context, self._encoder_input.fill([chunk])):
            raise EngineError(f"llama.cpp failed to compute a draft head (status {status}).", "Load without --draft.")
        pointer = hidden_states().llama_get_embeddings_nextn(self._context)
        return np.ctypeslib.as_array(pointer, (len(features), self._n_embd)).copy()

    def _n_left_out(self, item: _Waiting) -> int:
        is_first = item.position == self._followed[item.sequence_id].begin
        return int(is_first or super()._n_left_out(item))


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

    def _compute(self, waiting: Sequence[_Waiting]) -> bool:
        features = np.stack([row for item in waiting for row in item.rows])
        if self._injected is None:
            self._injected = Batch(self._n_rows, features.shape[1], has_tokens=False)
        self._injected.states[: len(features)] = features
        chunks = [Chunk(item.sequence_id, item.position, item.tokens, 0) for item in waiting]
        status = lib.llama_decode(self._context, self._injected.fill(chunks))
        if status < 0:
            raise EngineError(f"llama.cpp failed to compute a draft head (status {status}).", "Load without --draft.")
        return bool(status == DecodeStatus.DONE.value)
