"""The kinds of draft heads: a token after another (MTP layers, EAGLE-3), or a block at once (DFlash, DFlash 2, DSpark).

Source: common_speculative_impl_draft_mtp, _eagle3 and _dflash in llama.cpp common/speculative.cpp as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.context import Batch, LlamaBackend, NativeContext
from app.engine.llama.head_backend import STATE_LENGTH, Followed, HeadContext, Row, WaitingTokens
from app.engine.llama.native import hidden_states, lib
from app.engine.request import AdapterSet
from app.engine.speculative.draft_heads import HeadSpec, PredictedToken, walk_lattice
from quantizer.system.errors import EngineError

_UNKNOWN = 0.0  # the hidden state before a first token, or before one where a text was shared or restored


class HiddenRows:
    """The hidden states of the last tokens of each sequence, rows of float32. Pure: no native memory."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Row]] = {}  # position of the first row, and the rows

    def set(self, sequence_id: int, position: int, rows: Row) -> None:
        """Store a copy of `rows`, shape (n, n_embd), of the tokens from `position` on, instead of earlier ones. The row
        before them stays: a rejected draft may take the sequence back to its begin."""
        before = self.before(sequence_id, position)
        rows = rows.copy() if before is None else np.concatenate((before[np.newaxis], rows))
        self._rows[sequence_id] = position - (before is not None), rows

    def before(self, sequence_id: int, position: int) -> Row | None:
        """Return the row of the token before `position`, None if it is not stored."""
        begin, rows = self._rows.get(sequence_id, (position, ()))
        index = position - 1 - begin
        return rows[index] if 0 <= index < len(rows) else None

    def last(self, sequence_id: int) -> tuple[int, Row] | None:
        """Return the position of the last token and its row, None where there is none."""
        if sequence_id not in self._rows:
            return None
        begin, rows = self._rows[sequence_id]
        return begin + len(rows) - 1, rows[-1]

    def share(self, source_id: int, target_id: int) -> None:
        self.remove(target_id)
        if source_id in self._rows:
            self._rows[target_id] = self._rows[source_id]

    def remove(self, sequence_id: int) -> None:
        self._rows.pop(sequence_id, None)


class AutoregressiveContext(HeadContext):
    """A head of one layer that gets each token with the hidden state of the token before it, and predicts the next.
    Drafts continue with the head's own hidden states."""

    reads_output = True

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native, spec)
        self._batch = Batch(self._n_rows, self._n_embd)
        self._of_model = HiddenRows()  # of the model's tokens, as the layer gets them
        self._drafted = HiddenRows()  # of the head's own
        self._ahead: dict[int, tuple[int, int]] = {}  # position and token that the last draft began with
        hidden_states().llama_set_embeddings_nextn(native.context, True, True)

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        # A draft begins where the head has, or gets, all tokens of the model; later tokens are its own.
        begun = [
            chunk
            for chunk in chunks
            if (known := self._followed.get(chunk.sequence_id)) is None or known.end >= chunk.position
        ]
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

    def _compute(self, waiting: Sequence[WaitingTokens]) -> bool:
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

    def _n_left_out(self, item: WaitingTokens) -> int:
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


@dataclass(frozen=True, slots=True)
class DraftedRun:
    """The tokens of a draft so far, from `position` on, and the hidden states behind all but the last."""

    sequence_id: int
    position: int
    tokens: list[int]
    rows: list[Row]


class MtpContext(AutoregressiveContext):
    """An MTP layer of the model itself, the first behind its last or a later one by `index`, over the same weights and
    with the same adapters; one from a file of its own has none."""

    def __init__(self, native: NativeContext, spec: HeadSpec, index: int = 0) -> None:
        super().__init__(native, spec)
        hidden_states().llama_set_nextn_layer_offset(native.context, index)

    def set_adapters(self, adapters: AdapterSet) -> None:
        if self.facts.adapters:
            LlamaBackend.set_adapters(self, adapters)

    def last_drafted(self, sequence_id: int, position: int) -> Row:
        """Return the layer's hidden state of the token at `position`, which it drafted last."""
        row = self._drafted.before(sequence_id, position + 1)
        assert row is not None, "the layer has just drafted there"
        return row

    def predict_after(self, runs: Sequence[DraftedRun]) -> list[NDArray[np.float32]]:
        """Return the logits after each run of tokens, all of which the layer computes anew; an empty list if cells run
        short."""
        self.catch_up([run.sequence_id for run in runs])
        chunks, end = [], 0
        for run in runs:
            self._drafted.remove(run.sequence_id)
            self._ahead.pop(run.sequence_id, None)
            followed = self._known(run.sequence_id, run.position)
            LlamaBackend.truncate(self, run.sequence_id, followed.end)
            begin, end = end, end + len(run.tokens)
            self._batch.states[begin] = self._row_before(run.sequence_id, run.position)
            self._batch.states[begin + 1 : end] = run.rows
            chunks.append(Chunk(run.sequence_id, run.position, run.tokens, 1))
        if self.decode(chunks) is not DecodeStatus.DONE:
            for run in runs:
                self._forget(run.sequence_id)
            return []
        logits, end = [], 0
        for run in runs:
            end += len(run.tokens)
            pointer = hidden_states().llama_get_embeddings_nextn_ith(self._context, end - 1)
            last = run.position + len(run.tokens) - 1
            self._drafted.set(run.sequence_id, last, np.ctypeslib.as_array(pointer, (1, self._n_embd)))
            self._ahead[run.sequence_id] = run.position, run.tokens[0]
            logits.append(self.logits(end - 1))
        return logits


class ChainedMtpContext(MtpContext):
    """Several MTP layers that take turns: the first predicts the first token of a draft, the second the next one from
    all tokens so far. Each follows the model's tokens with the model's own hidden states. Every layer has a context:
    llama.cpp stores them all in the same cells, and would not find the cells of one layer again for the next."""

    def __init__(self, native: NativeContext, spec: HeadSpec, later: Sequence[MtpContext]) -> None:
        super().__init__(native, spec)
        self._later = tuple(later)
        for context in later:
            self._owned.callback(context.close)
        self._runs: dict[int, DraftedRun] = {}

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Return as the protocol has it; also an empty list for a chunk behind the turn of the last layer. All chunks
        are the first tokens of drafts, or all continue drafts of one length."""
        runs = [run for chunk in chunks if (run := self._run(chunk)) is not None]
        turn = max((len(run.tokens) for run in runs), default=0) - 1
        if len(runs) < len(chunks) or turn > len(self._later):
            return []
        layer = self._later[turn - 1] if turn else self
        predicted = layer.predict_after(runs) if turn else super().predict(chunks)
        for run in runs[: len(predicted)]:
            row = layer.last_drafted(run.sequence_id, run.position + turn)
            self._runs[run.sequence_id] = replace(run, rows=[*run.rows, row])
        return predicted

    def _run(self, chunk: Chunk) -> DraftedRun | None:
        """Return the draft that ends with `chunk`, None for one that goes on where the last layer has ended."""
        run, known = self._runs.get(chunk.sequence_id), self._followed.get(chunk.sequence_id)
        if known is None or known.end >= chunk.position:
            return DraftedRun(chunk.sequence_id, chunk.position, [*chunk.tokens], [])
        if run is None or run.position + len(run.tokens) != chunk.position:
            return None
        return replace(run, tokens=[*run.tokens, *chunk.tokens])

    def follow(self, chunks: Sequence[Chunk], features: Row) -> None:
        super().follow(chunks, features)
        for context in self._later:
            context.follow(chunks, features)

    def catch_up(self, sequence_ids: Collection[int]) -> None:
        super().catch_up(sequence_ids)
        for context in self._later:
            context.catch_up(sequence_ids)

    def set_adapters(self, adapters: AdapterSet) -> None:
        super().set_adapters(adapters)
        for context in self._later:
            context.set_adapters(adapters)

    def set_threads(self, n_threads: int) -> None:
        super().set_threads(n_threads)
        for context in self._later:
            context.set_threads(n_threads)

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share_cells(source_id, target_id, begin, end)
        for context in self._later:
            context.share_cells(source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        for context in self._later:
            context.truncate(sequence_id, n_tokens)
        return super().truncate(sequence_id, n_tokens)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        for context in self._later:
            context.shift(sequence_id, n_keep, n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        later = sum(context.state_bytes(sequence_id) for context in self._later)
        return STATE_LENGTH.size * len(self._later) + later + super().state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> State:
        later = [context.save_state(sequence_id) for context in self._later]
        parts = [part for state in later for part in (STATE_LENGTH.pack(len(state)), state)]
        return b"".join((*parts, super().save_state(sequence_id)))

    def restore_state(self, sequence_id: int, state: State) -> bool:
        rest = memoryview(state)
        for context in self._later:
            end = STATE_LENGTH.size + STATE_LENGTH.unpack_from(rest)[0]
            context.restore_state(sequence_id, rest[STATE_LENGTH.size : end])
            rest = rest[end:]
        return super().restore_state(sequence_id, rest)


class EagleContext(AutoregressiveContext):
    """An EAGLE-3 head, whose encoder fuses the hidden states of several layers. A first token has none before it and is
    left out."""

    _encoder_input: Batch | None = None  # as wide as the features are

    def _layer_input(self, features: Row) -> Row:
        if self._encoder_input is None:
            self._encoder_input = Batch(self._n_rows, features.shape[1], has_tokens=False)
        self._encoder_input.states[: len(features)] = features
        # Encoding stores nothing, but positions must follow those of the sequence.
        position = self._memory.last_position(0) + 1
        chunk = Chunk(0, position, range(len(features)), len(features))
        if status := lib.llama_encode(self._context, self._encoder_input.fill([chunk])):
            raise EngineError(f"llama.cpp failed to compute a draft head (status {status}).", "Load without --draft.")
        pointer = hidden_states().llama_get_embeddings_nextn(self._context)
        return np.ctypeslib.as_array(pointer, (len(features), self._n_embd)).copy()

    def _n_left_out(self, item: WaitingTokens) -> int:
        is_first = item.position == self._followed[item.sequence_id].begin
        return int(is_first or super()._n_left_out(item))


class BlockContext(HeadContext):
    """A DFlash or DSpark head: layers that attend to the model's hidden states and predict a block at once."""

    reads_logits = True

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
        self.catch_up([chunk.sequence_id for chunk in chunks])
        first = 0 if self.spec.samples_from_anchor else 1
        n_places = self.spec.n_block + first
        masks = [self.spec.mask_token] * (n_places - 1)
        n_at_once = max(1, self._n_rows // n_places)
        blocks: list[list[PredictedToken]] = []
        for at in range(0, len(chunks), n_at_once):
            group = chunks[at : at + n_at_once]
            for chunk in group:
                self._known(chunk.sequence_id, chunk.position)
            n_logits = n_places if self.reads_logits else 0
            masked = [replace(chunk, tokens=[*chunk.tokens, *masks], n_logits=n_logits) for chunk in group]
            is_done = self.decode(masked) is DecodeStatus.DONE
            rows = range(0, len(group) * n_places, n_places) if is_done else ()
            blocks += [self._block(begin + first, begin + n_places) for begin in rows]
            for chunk in group:  # the next tokens of the model take these places
                super().truncate(chunk.sequence_id, chunk.position)
            if not is_done:
                return []
        return blocks

    def _block(self, begin: int, end: int) -> list[PredictedToken]:
        """Return what the places of the last batch from `begin` to `end` predict."""
        return [self._predicted(row) for row in range(begin, end)]

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


class SelectorContext(BlockContext):
    """A DFlash 2 head, whose places have candidates and a score for each pair of neighbours. llama.cpp computes both in
    the graph: the logits, a row of the vocabulary for each place, stay where they are."""

    reads_logits = False

    def __init__(self, native: NativeContext, spec: HeadSpec) -> None:
        super().__init__(native, spec)
        hidden_states().llama_set_embeddings_nextn(native.context, True, False)  # a row for each place, without logits

    def lattice(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return llama.cpp's own memory of these places of the last batch, shape (end - begin, n_embd)."""
        pointer = hidden_states().llama_get_embeddings_nextn(self._context)
        return np.ctypeslib.as_array(pointer, (end, self._n_embd))[begin:]

    def _block(self, begin: int, end: int) -> list[PredictedToken]:
        return walk_lattice(self.lattice(begin, end), self.spec.n_candidates)
