"""A context over a loaded model: batches, decoding, logits, samplers, adapters and saved states.

Owns the native context, its cache, and the memory of batches that native code reads.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, Sampler, State, holds_window
from app.engine.llama.grammar_samplers import FirstCharacters, Grammar, GrammarSampler
from app.engine.llama.native import lib, native_log
from app.engine.llama.projector import LlamaProjector
from app.engine.llama.rope_scaling import scales_rotations
from app.engine.llama.samplers import Candidates, ChainBuilder, LlamaSampler
from app.engine.llama.sequence_memory import PositionMap, SequenceMemory, StateBuffers, StateMemory
from app.engine.llama.speaker import LlamaSpeaker
from app.engine.llama.step_weights import StepWeights
from app.engine.llama.tokenizer import LlamaTokenizer
from app.engine.loop.sampling import check_biases, n_candidates
from app.engine.loop.shared_draw import SharedDraw
from app.engine.media.chunks import MediaRows
from app.engine.messages import BackendFacts
from app.engine.request import AdapterSet, SamplingParams
from quantizer.system.errors import EngineError, UserError

_LARGE_VOCABULARY = 32_768  # with a smaller one llama.cpp's way takes no longer
_N_POSITIONS = 4  # of a state, where positions have several dimensions (M-RoPE)
_STATUSES = {status.value: status for status in DecodeStatus}
_MROPE_TYPES = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)


class LlamaAdapters:
    """LoRA adapters of one model by key, active by the batch, and a control vector, always active. llama.cpp makes room
    for adapters when it makes a context, so all are loaded before any. The model frees them."""

    def __init__(
        self, model: int, paths: Mapping[str, Path], control_vector: NDArray[np.float32] | None = None
    ) -> None:
        """Load the validated files at `paths`. The control vector has shape (n_layers - 1, n_embd). Raises EngineError
        with llama.cpp's message."""
        self._adapters: dict[str, Any] = {}
        self._control_vector = control_vector
        for key, path in paths.items():
            self._adapters[key] = lib.llama_adapter_lora_init(model, os.fsencode(path))
            if not self._adapters[key]:
                cause = f"llama.cpp cannot load the adapter {path.name}: {native_log().last_lines()}"
                raise EngineError(cause, "Choose an adapter that was made for this model.")

    def attach(self, context: int) -> None:
        """Apply the control vector and every adapter to a new context. Raises EngineError without support for them."""
        self.activate(context, tuple((key, 1.0) for key in sorted(self._adapters)))
        if self._control_vector is None:
            return
        directions = np.ascontiguousarray(self._control_vector, np.float32)
        n_rows, n_embd = directions.shape
        data = directions.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if lib.llama_set_adapter_cvec(context, data, directions.size, n_embd, 1, n_rows):
            cause = f"llama.cpp cannot apply the control vector: {native_log().last_lines()}"
            raise EngineError(cause, "Load the model without it.")

    def activate(self, context: int, adapters: AdapterSet) -> None:
        n_adapters = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * n_adapters)(*(self._adapters[key] for key, _ in adapters))
        scales = (ctypes.c_float * n_adapters)(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(context, pointers, n_adapters, scales)


@dataclass(frozen=True, slots=True)
class NativeContext:
    """Pointers to a model and to a context over it, which the backend frees, with their facts. `weights` chooses
    between two layouts of the weights, None where there is one."""

    model: int
    context: int
    facts: BackendFacts
    adapters: LlamaAdapters
    weights: StepWeights | None = None


class LlamaBackend:
    """A context and its cache over a loaded model. Make one with `LlamaModel.context`."""

    def __init__(self, native: NativeContext) -> None:
        model, context, facts = native.model, native.context, native.facts
        self._llama_adapters = native.adapters
        self._weights = native.weights
        self._n_threads: int = lib.llama_n_threads(native.context)
        self._adapters: AdapterSet | None = None  # None before the first call of `set_adapters`
        self._owned = ExitStack()
        self._owned.callback(lib.llama_free, context)
        if native.weights is not None:
            self._owned.callback(native.weights.close)
        self._context = context
        self._vocab = lib.llama_model_get_vocab(model)
        self._tokenizer = LlamaTokenizer(model)
        n_sequences = facts.n_seq_max + facts.truncation.n_holds
        self._memory = SequenceMemory(lib.llama_get_memory(context), n_sequences)
        self._positions = PositionMap()
        self._has_mrope = lib.llama_model_rope_type(model) in _MROPE_TYPES
        self._n_embd_input = lib.llama_model_n_embd_inp(model)
        self._states = (
            StateMemory(context, facts.truncation, facts.n_seq_max, self._positions, self._memory)
            if facts.truncation.has_states
            else None
        )
        supports_shift = facts.truncation.is_unlimited and self._memory.supports_shift and not scales_rotations(model)
        layout = f"{facts.layout}-mrope" if self._has_mrope else facts.layout
        self.facts = replace(facts, supports_shift=supports_shift, layout=layout)
        self._checkpoint_buffers = StateBuffers()
        self._batch = Batch(facts.n_batch)
        self._pieces: dict[int, bytes] = {}
        self._piece_buffer = ctypes.create_string_buffer(256)
        self._chains = ChainBuilder(self._vocab, facts)
        self._owned.callback(self._chains.close)
        self._interrupt = Interrupt()
        lib.llama_set_abort_callback(context, self._interrupt.callback, self._interrupt.data)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self._tokenizer(text, add_special, parse_special)

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def label(self, token: int) -> bytes:
        return self._read_piece(token, with_special=True)

    def _read_piece(self, token: int, *, with_special: bool = False) -> bytes:
        while True:
            buffer = self._piece_buffer
            n_bytes = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, with_special)
            if n_bytes >= 0:
                return ctypes.string_at(buffer, n_bytes)
            self._piece_buffer = ctypes.create_string_buffer(-n_bytes)

    def is_eog(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def new_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = (), visible: Collection[int] = ()
    ) -> Sampler:
        if not params.grammar:
            check_biases(params, self.facts.n_vocab)
            return self._new_free_sampler(params, ignore_eos, history)
        sampler = self.new_bindable_sampler(params, ignore_eos, history)
        try:
            sampler.bind(params.grammar, visible)
        except UserError:
            sampler.close()
            raise
        return sampler

    def new_bindable_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()
    ) -> GrammarSampler:
        check_biases(params, self.facts.n_vocab)
        # Where a grammar decides when an answer may end, banning its end would leave no token.
        free = self._new_free_sampler(params, ignore_eos and not params.ends_by_grammar, history)
        return GrammarSampler(free, self._candidates, self._new_grammar, is_filtered_first=params.mirostat > 0)

    def _new_free_sampler(self, params: SamplingParams, ignore_eos: bool, history: Sequence[int]) -> LlamaSampler:
        banned = self._end_tokens if ignore_eos else ()
        draw = SharedDraw.of(params)
        is_native = draw is None and self.facts.n_vocab < _LARGE_VOCABULARY
        n_likeliest = None if is_native else n_candidates(params, banned)
        return LlamaSampler(self._candidates, self._chains.build(params, banned, history), n_likeliest, draw)

    def _new_grammar(self, text: str, visible: Collection[int]) -> Grammar:
        # A special token has no text for clients, except where it is `visible` to them.
        def piece(token: int) -> bytes:
            return self.label(token) if token in visible else self.piece(token)

        return Grammar(self._vocab, text, lambda: self._first_characters, piece, self.is_eog)

    @cached_property
    def _candidates(self) -> Candidates:
        return Candidates(self._context, self.facts.n_vocab)

    @cached_property
    def _first_characters(self) -> FirstCharacters:
        return FirstCharacters(map(self.label, range(self.facts.n_vocab)), self._end_tokens)

    @cached_property
    def _end_tokens(self) -> tuple[int, ...]:
        return tuple(token for token in range(self.facts.n_vocab) if self.is_eog(token))

    def speaker(self, projector: LlamaProjector) -> LlamaSpeaker:
        """Return what speaks with this context and `projector`; nothing else may compute with the context from then on.
        Close it before both."""

        def new_sampler(params: SamplingParams, banned: tuple[int, ...]) -> LlamaSampler:
            return LlamaSampler(self._candidates, self._chains.build(params, banned, ()))

        return LlamaSpeaker(self._context, projector, new_sampler, self.facts.n_outputs)

    def set_adapters(self, adapters: AdapterSet) -> None:
        if adapters != self._adapters:
            self._llama_adapters.activate(self._context, adapters)
            self._adapters = adapters

    def set_threads(self, n_threads: int) -> None:
        self._n_threads = n_threads
        lib.llama_set_n_threads(self._context, n_threads, n_threads)

    @property
    def has_copies(self) -> bool:
        return self._weights is not None and self._weights.has_copies

    @cached_property
    def _embedding_batch(self) -> Batch:
        return Batch(self.facts.n_batch, self._n_embd_input, has_tokens=False)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        if len(chunks) > 1 and not self.facts.has_attention:
            self._memory.line_up([chunk.sequence_id for chunk in chunks])
        native = [
            Chunk(
                self._memory.native(chunk.sequence_id),
                self._positions.position(chunk.sequence_id, chunk.position),
                chunk.tokens,
                chunk.n_logits,
                chunk.media,
            )
            for chunk in chunks
        ]
        media = chunks[0].media
        if media is None:
            batch = self._batch.fill(native)
        else:
            assert len(chunks) == 1, "a picture or sound is a batch of its own"
            batch = self._embedding_batch.fill_media(native[0], media)
        n_logits = sum(chunk.n_logits for chunk in native)
        self._check_outputs(n_logits)
        if self._weights is not None:
            self._weights.choose(batch.n_tokens, n_logits, self._n_threads, self._interrupt.is_set)
        # Encoders compute whole texts. llama_decode would end the process for a model with an encoder (T5), whose
        # decoder needs an encoded prompt.
        compute = lib.llama_decode if self.facts.can_generate else lib.llama_encode
        if media is None or media.chunk.is_causal:
            returned = compute(self._context, batch)
        else:  # the tokens of a picture attend to later ones, too
            lib.llama_set_causal_attn(self._context, False)
            returned = compute(self._context, batch)
            lib.llama_set_causal_attn(self._context, True)
        if self._weights is not None:
            self._weights.after_step()
        self._interrupt.clear()
        status = _STATUSES.get(returned)
        if status is DecodeStatus.DONE:
            for chunk in chunks:
                self._positions.computed(chunk, has_mrope=self._has_mrope)
        if self._states and status is not DecodeStatus.NO_SLOT:
            self._states.after_batch(chunks, is_done=status is DecodeStatus.DONE)
        if status is not None:
            return status
        cause = f"llama.cpp failed to compute a batch (status {returned}): {native_log().last_lines()}"
        raise EngineError(cause, "Load the model again.")

    def _check_outputs(self, n_logits: int) -> None:
        """Raise EngineError where llama.cpp would end the process: beyond what its buffers were planned for."""
        if 0 < self.facts.n_outputs < n_logits:
            cause = (
                f"A step wants the logits of {n_logits} tokens, and this context has those of {self.facts.n_outputs}."
            )
            raise EngineError(cause, "Report this: it is a fault of localllm.")

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        if self._states:
            self._states.share(source_id, target_id)
            return
        first, last = (self._positions.position(source_id, place) for place in (begin, end))
        self._memory.remove(target_id, first, last)
        self._memory.copy(source_id, target_id, first, last)
        self._positions.share(source_id, target_id, end)

    def hold(self, sequence_id: int) -> None:
        if self._states:
            self._states.hold(sequence_id)

    def first_held(self, sequence_id: int) -> int:
        if self._states or not self.facts.n_window:
            return 0
        return self._positions.n_tokens(sequence_id, self._memory.first_position(sequence_id))

    def overlay(self, source_id: int, target_id: int) -> None:
        self._memory.copy(source_id, target_id)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        n_tokens = self._positions.n_whole(sequence_id, n_tokens)
        if self._states:
            n_tokens = self._states.truncate(sequence_id, n_tokens)
        else:
            # Where a window has passed the place, what attention needs before it is overwritten: nothing can remain.
            is_possible = holds_window(self.first_held(sequence_id), n_tokens, self.facts.n_window)
            position = self._positions.position(sequence_id, n_tokens)
            if not (is_possible and self._memory.remove(sequence_id, position)):
                self._memory.remove(sequence_id)
                n_tokens = 0
        self._positions.truncate(sequence_id, n_tokens)
        return n_tokens

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        self._memory.remove(sequence_id, n_keep, n_keep + n_discard)
        self._memory.move(sequence_id, n_keep + n_discard, -n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        n_bytes = self._n_state_bytes(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE)
        return len(self._saved_positions(sequence_id)) + n_bytes

    def save_state(self, sequence_id: int) -> State:
        return self._save(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE, before=self._saved_positions(sequence_id))

    def restore_state(self, sequence_id: int, state: State) -> bool:
        if self._states:
            self._states.forget(sequence_id)
        begin = self._positions.decode(sequence_id, state) if self._has_mrope else 0
        if self._restore(sequence_id, memoryview(state)[begin:], lib.LLAMA_STATE_SEQ_FLAGS_NONE):
            return True
        self._memory.remove(sequence_id)
        self._positions.forget(sequence_id)
        return False

    def _saved_positions(self, sequence_id: int) -> bytes:
        """Return the first bytes of a saved state: where the sequence's pictures are."""
        return self._positions.encode(sequence_id) if self._has_mrope else b""

    def save_checkpoint(self, sequence_id: int) -> State:
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        state = self._checkpoint_buffers.take(self._n_state_bytes(sequence_id, flags))
        self._write_state(sequence_id, flags, state)
        return state.data

    def prepare_checkpoints(self) -> None:
        if self._states:  # checkpoints of sliding windows differ in size, so no buffer could be used again
            self._checkpoint_buffers.prepare()

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        if self._states:
            self._states.forget(sequence_id)
        end = n_tokens if source_id is None else self._positions.position(source_id, n_tokens)
        if source_id is not None and source_id != sequence_id:
            self._memory.copy(source_id, sequence_id, 0, end)
            self._positions.share(source_id, sequence_id, n_tokens)
        self._positions.truncate(sequence_id, n_tokens)
        is_restored = self._restore(sequence_id, checkpoint, lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        # llama_memory_seq_rm refuses to cut states, but they are now those before `n_tokens`: only cells are cut.
        if is_restored and self._memory.remove(sequence_id, end):
            return True
        self._memory.remove(sequence_id)
        self._positions.forget(sequence_id)
        return False

    def _save(self, sequence_id: int, flags: int, before: State = b"", after: State = b"") -> State:
        """Return the state between `before` and `after`; joining them later would take longer than saving."""
        begin, size = len(before), self._n_state_bytes(sequence_id, flags)
        # numpy asks for large pages: their faults cost a fifth of a bytearray's.
        state = np.empty(begin + size + len(after), np.uint8)
        self._write_state(sequence_id, flags, state[begin : begin + size])
        state[:begin], state[begin + size :] = np.frombuffer(before, np.uint8), np.frombuffer(after, np.uint8)
        return state.data

    def _n_state_bytes(self, sequence_id: int, flags: int) -> int:
        return int(lib.llama_state_seq_get_size_ext(self._context, self._memory.native(sequence_id), flags))

    def _write_state(self, sequence_id: int, flags: int, into: NDArray[np.uint8]) -> None:
        native_id, size = self._memory.native(sequence_id), len(into)
        n_bytes = lib.llama_state_seq_get_data_ext(self._context, _bytes_of(into), size, native_id, flags)
        assert n_bytes == size, "a state has the announced size"

    def _restore(self, sequence_id: int, state: State, flags: int) -> bool:
        native_id, data = self._memory.native(sequence_id), np.frombuffer(state, np.uint8)  # no copy
        return bool(lib.llama_state_seq_set_data_ext(self._context, _bytes_of(data), len(data), native_id, flags))

    def interrupt(self) -> None:
        self._interrupt.set()

    def logits(self, row: int) -> NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self.facts.n_vocab,)).copy()

    def close(self) -> None:
        self._owned.close()


def _bytes_of(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class Batch:
    """The arrays of a llama_batch for up to `n_tokens` tokens. With `n_embd` each token has a row in `states`, shape
    (n_tokens, n_embd). A batch of states alone, without tokens, has four rows of positions, of which models with simple
    positions read the first."""

    def __init__(self, n_tokens: int, n_embd: int = 0, *, has_tokens: bool = True) -> None:
        self._has_tokens = has_tokens
        self.states: NDArray[np.float32] = np.zeros((n_tokens, n_embd), np.float32)
        integers = ctypes.c_int32 * n_tokens  # writing a few values is faster than with numpy
        self._token, self._sequence_id = integers(), integers()
        self._position = (ctypes.c_int32 * (n_tokens if has_tokens else _N_POSITIONS * n_tokens))()
        self._logits = (ctypes.c_int8 * n_tokens)()
        begin, width = ctypes.addressof(self._sequence_id), ctypes.sizeof(ctypes.c_int32)
        self._batch = lib.llama_batch()
        self._own: dict[str, ctypes.Array[Any]] = {
            **({"token": self._token} if has_tokens else {}),
            "pos": self._position,
            "n_seq_id": integers(*[1] * n_tokens),
            "seq_id": (ctypes.c_void_p * n_tokens)(*range(begin, begin + n_tokens * width, width)),
            "logits": self._logits,
        }
        if n_embd:
            self._own["embd"] = np.ctypeslib.as_ctypes(self.states)
        for field, array in self._own.items():
            # llama_batch points into these arrays; `_own` keeps them alive as long as the batch.
            setattr(self._batch, field, ctypes.cast(array, dict(lib.llama_batch._fields_)[field]))

    def fill(self, chunks: Sequence[Chunk]) -> lib.llama_batch:
        """Return the native batch of `chunks`, with llama.cpp's ids and positions; it is valid until the next call."""
        end = 0
        for chunk in chunks:
            n_tokens = len(chunk.tokens)
            begin, end = end, end + n_tokens
            self._token[begin:end] = [*chunk.tokens]
            self._position[begin:end] = [*range(chunk.position, chunk.position + n_tokens)]
            self._sequence_id[begin:end] = [*repeat(chunk.sequence_id, n_tokens)]
            self._logits[begin:end] = [*repeat(0, n_tokens - chunk.n_logits), *repeat(1, chunk.n_logits)]
        self._batch.n_tokens = end
        if not self._has_tokens:  # time, height and width are the same; the last is unused
            self._position[end : 3 * end] = [*self._position[:end], *self._position[:end]]
            self._position[3 * end : 4 * end] = [*repeat(0, end)]
        return self._batch

    def fill_media(self, chunk: Chunk, media: MediaRows) -> lib.llama_batch:
        """Return the native batch of the embeddings of `chunk`; for batches of states alone."""
        n_tokens = len(chunk.tokens)
        batch = self.fill([chunk])
        self.states[:n_tokens] = media.embeddings
        if media.chunk.positions is not None:
            rows = media.chunk.positions[media.begin : media.begin + n_tokens] + chunk.position
            self._position[: 3 * n_tokens] = [*rows.T.ravel().tolist()]
        return batch


class Interrupt:
    """A flag that llama.cpp reads between graph nodes without entering Python. A Python callback would need the GIL for
    every node. The abort callback is the C library's strlen over our buffer: 0, so false, while the buffer is empty."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self.callback = ctypes.cast(library.strlen, lib.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        self._buffer[0] = b"!"

    def is_set(self) -> bool:
        return self._buffer[0] != b"\0"

    def clear(self) -> None:
        self._buffer[0] = b"\0"
