"""llama.cpp as a `Backend`: the only module that imports llama_cpp.

Every pointer has one owner, freed by `close`: LlamaModel, LlamaBackend (a context over it) and LlamaSampler (a chain).
One thread makes all calls but `interrupt`. Knows nothing of requests beyond their sampling parameters.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from llama_cpp._ctypes_extensions import load_shared_library
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, ModelFacts, Sampler
from app.engine.frames import EngineConfig
from app.engine.request import SamplingParams
from app.engine.sampler import Stage, check_biases, check_grammar, n_remembered, stages
from app.engine.tuning import Setting
from quantizer.errors import EngineError, RequestError

__all__ = ["LlamaBackend", "LlamaModel", "LlamaSampler", "n_gpu_devices"]

DEFAULT_N_CTX = 8192
DEFAULT_N_CELLS = 16384
N_BATCH = 512
N_PARKED = 32  # sequences kept beside the running ones for their prefixes; each costs only its cells
MAX_PROMPT_BYTES = 16 << 20
MIROSTAT_M = 100  # tokens that estimate the exponent of Zipf's law, as in common/sampling.cpp@0.3.36
_N_KEPT_LOG_LINES = 50
_GPU_KINDS = (1, 2)  # discrete and integrated, of ggml_backend_dev_type@0.3.36
NativeSampler = Any  # a ctypes pointer to llama_sampler
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level@0.3.36; llama_cpp._logger has another, wrong order


class NativeLog:
    """What llama.cpp says: the last warnings and errors are kept for error messages and passed to stderr."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_KEPT_LOG_LINES)
        self._level = 0
        self._callback = lib.llama_log_callback(self._receive)  # must live as long as llama.cpp may call it
        lib.llama_log_set(self._callback, ctypes.c_void_p())

    def last_words(self, n_lines: int = 3) -> str:
        """Return the last lines on one line of text, without control characters."""
        words = " ".join(list(self._lines)[-n_lines:])
        return "".join(character for character in words if character.isprintable())

    def _receive(self, level: int, text: bytes, _data: object) -> None:
        if level != _CONTINUED:
            self._level = level
        line = text.decode("utf-8", "replace").strip()
        if self._level in (_WARN, _ERROR) and line:
            self._lines.append(line)
            print(line, file=sys.stderr, flush=True)


@cache
def _log() -> NativeLog:
    """Return the process's one log; llama.cpp knows only one receiver."""
    return NativeLog()


class Batch:
    """The arrays of a llama_batch for up to `n_tokens` tokens of one sequence each."""

    def __init__(self, n_tokens: int) -> None:
        self._token = np.zeros(n_tokens, np.int32)
        self._position = np.zeros(n_tokens, np.int32)
        self._sequence_id = np.zeros(n_tokens, np.int32)
        self._n_sequence_ids = np.ones(n_tokens, np.int32)
        self._logits = np.zeros(n_tokens, np.int8)
        address, width = self._sequence_id.ctypes.data, self._sequence_id.itemsize
        self._sequence_id_at = np.arange(address, address + n_tokens * width, width, dtype=np.uintp)
        self._batch = lib.llama_batch()
        for field, array in (
            ("token", self._token),
            ("pos", self._position),
            ("n_seq_id", self._n_sequence_ids),
            ("seq_id", self._sequence_id_at),
            ("logits", self._logits),
        ):
            kind = dict(lib.llama_batch._fields_)[field]
            setattr(self._batch, field, ctypes.cast(ctypes.c_void_p(array.ctypes.data), kind))

    def fill(self, chunks: Sequence[Chunk]) -> lib.llama_batch:
        """Return the native batch of `chunks`; it is valid until the next call."""
        end = 0
        for chunk in chunks:
            begin, end = end, end + len(chunk.tokens)
            self._token[begin:end] = chunk.tokens
            self._position[begin:end] = np.arange(chunk.position, chunk.position + end - begin)
            self._sequence_id[begin:end] = chunk.sequence_id
            self._logits[begin:end] = 0
            self._logits[end - chunk.n_logits : end] = 1
        self._batch.n_tokens = end
        return self._batch


class Interrupt:
    """A flag that llama.cpp reads between graph nodes without entering Python.

    The abort callback is the C library's strlen over a buffer of ours: 0, hence false, while the buffer is empty.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self.callback = ctypes.cast(library.strlen, lib.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        self._buffer[0] = b"!"

    def clear(self) -> None:
        self._buffer[0] = b"\0"


class LlamaBackend:
    """A context and its cache over a loaded model. Make one with `LlamaModel.context`."""

    def __init__(self, model: int, context: int, facts: ModelFacts) -> None:
        self.facts = facts
        self._owned = ExitStack()
        self._owned.callback(lib.llama_free, context)
        self._context = context
        self._vocab = lib.llama_model_get_vocab(model)
        self._memory = lib.llama_get_memory(context)
        self._batch = Batch(facts.n_batch)
        self._pieces: dict[int, bytes] = {}
        self._end_tokens: tuple[int, ...] | None = None
        self._candidates: Candidates | None = None
        self._chains = ChainBuilder(self._vocab, facts)
        self._owned.callback(self._chains.close)
        self._interrupt = Interrupt()
        lib.llama_set_abort_callback(context, self._interrupt.callback, self._interrupt.data)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of `text`. Raises RequestError for text that is not Unicode or above 16 MiB."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("The text holds half a character (a lone surrogate).", "Send valid Unicode.") from error
        if len(data) > MAX_PROMPT_BYTES:
            raise RequestError(f"The text has {len(data)} bytes.", f"Send at most {MAX_PROMPT_BYTES}.")
        size = len(data) + 8  # a token has at least a byte, but for the special ones at both ends
        tokens = (lib.llama_token * size)()
        n_tokens = lib.llama_tokenize(self._vocab, data, len(data), tokens, size, add_special, parse_special)
        if n_tokens < 0:
            raise EngineError("The text could not be tokenized.", "Send it in smaller parts.")
        return list(tokens[:n_tokens])

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def label(self, token: int) -> bytes:
        return self._read_piece(token, with_special=True)

    def _read_piece(self, token: int, *, with_special: bool = False) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n_bytes = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, with_special)
            if n_bytes >= 0:
                return buffer.raw[:n_bytes]
            size = -n_bytes

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def new_sampler(self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()) -> Sampler:
        check_biases(params, self.facts.n_vocab)
        grammar = _new_grammar(self._vocab, params.grammar) if params.grammar else None
        banned = self._ends() if ignore_eos and not grammar else ()  # a grammar itself says when an answer may end
        chain = self._chains.build(params, banned, history)
        if grammar is None:
            return LlamaSampler(self._context, chain)
        self._candidates = self._candidates or Candidates(self._context, self.facts.n_vocab)
        return GrammarSampler(self._candidates, chain, grammar, is_filtered_first=params.mirostat > 0)

    def _ends(self) -> tuple[int, ...]:
        if self._end_tokens is None:
            self._end_tokens = tuple(token for token in range(self.facts.n_vocab) if self.is_end(token))
        return self._end_tokens

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = lib.llama_decode(self._context, self._batch.fill(chunks))
        self._interrupt.clear()
        if status in (0, 1, 2):
            return DecodeStatus(status)
        raise EngineError(
            f"llama.cpp failed to compute a batch (status {status}): {_log().last_words()}", "Load the model again."
        )

    def share(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        if not self.facts.can_cut:
            begin, end = -1, -1
        lib.llama_memory_seq_rm(self._memory, target_id, begin, end)
        lib.llama_memory_seq_cp(self._memory, source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        if lib.llama_memory_seq_rm(self._memory, sequence_id, n_tokens, -1):
            return n_tokens
        lib.llama_memory_seq_rm(self._memory, sequence_id, -1, -1)
        return 0

    def state_bytes(self, sequence_id: int) -> int:
        return int(lib.llama_state_seq_get_size(self._context, sequence_id))

    def save(self, sequence_id: int) -> bytearray:
        state = bytearray(self.state_bytes(sequence_id))
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        n_bytes = lib.llama_state_seq_get_data(self._context, buffer, len(state), sequence_id)
        assert n_bytes == len(state), "a state is as large as it was said to be"
        return state

    def restore(self, sequence_id: int, state: bytes | bytearray) -> bool:
        data = bytes(state)  # no copy where it is bytes already
        buffer = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data(self._context, buffer, len(data), sequence_id):
            return True
        lib.llama_memory_seq_rm(self._memory, sequence_id, -1, -1)
        return False

    def interrupt(self) -> None:
        self._interrupt.set()

    def logits(self, row: int) -> NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self.facts.n_vocab,)).copy()

    def close(self) -> None:
        self._owned.close()


class LlamaSampler:
    """A sampler chain over one context; it owns the chain."""

    def __init__(self, context: int, chain: NativeSampler) -> None:
        self._context = context
        self._chain = chain
        self._owned = ExitStack()
        self._owned.callback(lib.llama_sampler_free, chain)

    def sample(self, row: int) -> int:
        return int(lib.llama_sampler_sample(self._chain, self._context, row))

    def close(self) -> None:
        self._owned.close()


class Candidates:
    """One row of logits as samplers see it: they sort, cut and mask it in place. Shared, for one samples at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self._context = context
        self._shape = (n_vocab,)
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._unsorted = np.zeros(n_vocab, kind)
        self._unsorted["id"] = np.arange(n_vocab)
        self._data = np.empty(n_vocab, kind)
        self._bytes = self._unsorted.view(np.uint8), self._data.view(np.uint8)  # numpy copies records field by field
        self._one = np.zeros(1, kind)

    def fill(self, row: int) -> lib.llama_token_data_array:
        """Return every token with its logit in `row` of the last batch; valid until the next call."""
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), self._shape)
        self._unsorted["logit"] = logits
        source, target = self._bytes
        np.copyto(target, source)
        return _token_array(self._data)

    def allows_any(self, grammar: NativeSampler, array: lib.llama_token_data_array) -> bool:
        """Mask what `grammar` refuses in `array`, the one `fill` returned; return whether anything is left."""
        lib.llama_sampler_apply(grammar, ctypes.byref(array))
        return bool(np.isfinite(self._data["logit"]).any())

    def allows(self, grammar: NativeSampler, token: int) -> bool:
        """Return whether `grammar` lets `token` come next."""
        self._one[0] = (token, 0.0, 0.0)
        lib.llama_sampler_apply(grammar, ctypes.byref(_token_array(self._one)))
        return bool(np.isfinite(self._one["logit"][0]))


def _token_array(data: np.ndarray) -> lib.llama_token_data_array:
    pointer = ctypes.cast(ctypes.c_void_p(data.ctypes.data), lib.llama_token_data_p)
    return lib.llama_token_data_array(pointer, len(data), -1, False)


class GrammarSampler:
    """A sampler chain and a grammar, both owned.

    What the chain chooses is taken if the grammar allows it; only else the whole vocabulary is filtered, and the chain
    chooses again from what is left (source: common_sampler_sample, common/sampling.cpp@0.3.36). Where no stage cuts
    candidates off, both draws together are one from the allowed tokens: p + (1 - allowed) * p / allowed = p / allowed.
    With `is_filtered_first` the first draw is left out: mirostat learns from a draw even when its token is refused.
    """

    def __init__(
        self, candidates: Candidates, chain: NativeSampler, grammar: NativeSampler, *, is_filtered_first: bool
    ) -> None:
        self._candidates = candidates
        self._chain = chain
        self._grammar = grammar
        self._owned = ExitStack()
        for sampler in (chain, grammar):
            self._owned.callback(lib.llama_sampler_free, sampler)
        self._is_filtered_first = is_filtered_first

    def sample(self, row: int) -> int:
        """Return the token for `row`. Raises RequestError when the grammar allows no token of this vocabulary."""
        token = None if self._is_filtered_first else self._choose(self._candidates.fill(row))
        if token is None or not self._candidates.allows(self._grammar, token):
            token = self._choose_filtered(row)
        lib.llama_sampler_accept(self._grammar, token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, array: lib.llama_token_data_array) -> int:
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _choose_filtered(self, row: int) -> int:
        # Accepting a token that the grammar refuses would abort the process, as would choosing from nothing.
        array = self._candidates.fill(row)
        if self._candidates.allows_any(self._grammar, array):
            token = self._choose(array)
            if self._candidates.allows(self._grammar, token):
                return token
        raise RequestError("The grammar allows no token of this model here.", "Change the grammar or logit_bias.")

    def close(self) -> None:
        self._owned.close()


def _new_grammar(vocab: int, grammar: str) -> NativeSampler:
    check_grammar(grammar)
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        raise RequestError(f"The grammar is not valid GBNF: {_log().last_words(1)}", "It needs a rule named root.")
    return sampler


class ChainBuilder:
    """Builds sampler chains for one vocabulary. Their stages are those of `app.engine.sampler`."""

    def __init__(self, vocab: int, facts: ModelFacts) -> None:
        self._vocab = vocab
        self._facts = facts
        self._dry: tuple[Stage, NativeSampler] | None = None
        # The stages whose llama_sampler_init_... takes more than their numbers.
        self._builders: dict[str, Callable[[Stage], NativeSampler]] = {
            "logit_bias": self._new_logit_bias,
            "penalties": self._new_penalties,
            "dry": self._new_dry,
            "mirostat": self._new_mirostat,
        }

    def build(self, params: SamplingParams, banned: Sequence[int], history: Sequence[int]) -> NativeSampler:
        """Return a new chain, the caller's to free, that has seen `history`."""
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages(params, banned):
            build = self._builders.get(stage.name)
            sampler = build(stage) if build else getattr(lib, f"llama_sampler_init_{stage.name}")(*stage.arguments)
            lib.llama_sampler_chain_add(chain, sampler)
        n_back = n_remembered(params, self._facts.n_ctx)
        for token in history[max(0, len(history) - n_back) :]:
            lib.llama_sampler_accept(chain, token)
        return chain

    def close(self) -> None:
        if self._dry is not None:
            lib.llama_sampler_free(self._dry[1])
            self._dry = None

    def _new_logit_bias(self, stage: Stage) -> NativeSampler:
        pairs = stage.arguments
        biases = (lib.llama_logit_bias * len(pairs))(*pairs)
        return lib.llama_sampler_init_logit_bias(self._facts.n_vocab, len(pairs), biases)

    def _new_penalties(self, stage: Stage) -> NativeSampler:
        last_n, *penalties = stage.arguments
        return lib.llama_sampler_init_penalties(self._facts.n_vocab, self._n_back(last_n), *penalties)

    def _new_dry(self, stage: Stage) -> NativeSampler:
        # Looking for its breakers in the whole vocabulary takes 130 ms where that has 128k tokens; a clone takes none.
        if self._dry is None or self._dry[0] != stage:
            self.close()
            self._dry = stage, self._new_dry_prototype(stage)
        return lib.llama_sampler_clone(self._dry[1])

    def _new_dry_prototype(self, stage: Stage) -> NativeSampler:
        multiplier, base, allowed_length, last_n, *texts = stage.arguments
        breakers = (ctypes.c_char_p * len(texts))(*(str(text).encode("utf-8", "replace") for text in texts))
        n_back = self._n_back(last_n)
        return lib.llama_sampler_init_dry(self._vocab, multiplier, base, allowed_length, n_back, breakers, len(texts))

    def _new_mirostat(self, stage: Stage) -> NativeSampler:
        return lib.llama_sampler_init_mirostat(self._facts.n_vocab, *stage.arguments, MIROSTAT_M)

    def _n_back(self, last_n: Any) -> int:
        """Return a count of tokens to look back; llama.cpp reserves memory for it at once."""
        return self._facts.n_ctx if last_n < 0 else min(last_n, self._facts.n_ctx)


class LlamaModel:
    """Loaded weights; contexts of several settings may run over them."""

    def __init__(
        self, path: Path, n_gpu_layers: int, extra_buffers: bool, on_progress: Callable[[float], bool]
    ) -> None:
        """Load the model at `path`, which `quantizer` has let through.

        `on_progress` gets fractions from 0 to 1 and returns False to cancel. Raises EngineError with llama.cpp's words.
        """
        log = _log()
        lib.llama_backend_init()
        self._owned = ExitStack()
        progress = lib.llama_progress_callback(lambda fraction, _data: on_progress(fraction))
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = extra_buffers
        params.progress_callback = progress
        self._model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise EngineError(f"llama.cpp cannot load {path.name}: {log.last_words()}", "See `localllm show`.")
        self._owned.callback(lib.llama_model_free, self._model)
        if not lib.llama_model_has_decoder(self._model) or not self._has_vocabulary():
            self.close()
            raise EngineError(f"{path.name} cannot generate text.", "Choose a chat or completion model.")

    def context(self, config: EngineConfig, setting: Setting) -> LlamaBackend:
        """Return a backend over these weights; close it before the model. Raises EngineError without the memory."""
        facts = _facts(self._model, config, setting)
        context = lib.llama_init_from_model(self._model, _context_params(facts, setting))
        if not context:
            raise EngineError(
                f"llama.cpp cannot make a context of {facts.n_cells} tokens: {_log().last_words()}",
                "Use a smaller --ctx, or a smaller model.",
            )
        return LlamaBackend(self._model, context, facts)

    def close(self) -> None:
        self._owned.close()

    def _has_vocabulary(self) -> bool:
        return bool(lib.llama_vocab_type(lib.llama_model_get_vocab(self._model)))


def _facts(model: int, config: EngineConfig, setting: Setting) -> ModelFacts:
    n_ctx_train = lib.llama_model_n_ctx_train(model)
    n_ctx = config.n_ctx or min(n_ctx_train, DEFAULT_N_CTX)
    can_cut = not (
        lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model) or lib.llama_model_n_swa(model) > 0
    )
    n_parked = N_PARKED if can_cut else config.n_sequences
    description = ctypes.create_string_buffer(128)
    lib.llama_model_desc(model, description, len(description))
    return ModelFacts(
        description=description.value.decode("utf-8", "replace"),
        n_vocab=lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)),
        n_ctx=n_ctx,
        n_ctx_train=n_ctx_train,
        n_cells=max(n_ctx, min(n_ctx * config.n_sequences, DEFAULT_N_CELLS)),
        n_sequences=config.n_sequences,
        n_places=min(config.n_sequences + n_parked, lib.llama_max_parallel_sequences()),
        can_cut=can_cut,
        n_batch=config.n_batch or N_BATCH,
        n_parameters=lib.llama_model_n_params(model),
        model_bytes=lib.llama_model_size(model),
        layout="flash" if setting.flash_attention else "plain",
    )


@cache
def n_gpu_devices() -> int:
    """Return how many GPUs this build can use. llama_supports_gpu_offload says yes to any build with RPC in it."""
    count, get, kind = (_ggml_function(f"ggml_backend_dev_{name}") for name in ("count", "get", "type"))
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, [ctypes.c_size_t]
    kind.restype, kind.argtypes = ctypes.c_int, [ctypes.c_void_p]
    return sum(kind(get(index)) in _GPU_KINDS for index in range(count()))


def _ggml_function(name: str) -> Any:
    """Return a function of ggml, which llama_cpp does not bind; not every system finds it through libllama."""
    folder = Path(lib.__file__).parent / "lib"
    for library in (lib._lib, *(load_shared_library(part, folder) for part in ("ggml", "ggml-base"))):  # noqa: SLF001
        if hasattr(library, name):
            return getattr(library, name)
    raise EngineError(f"This build of llama.cpp has no {name}.", "Install llama-cpp-python again.")


def _context_params(facts: ModelFacts, setting: Setting) -> lib.llama_context_params:
    params = lib.llama_context_default_params()
    params.n_ctx = facts.n_cells
    params.n_batch = params.n_ubatch = facts.n_batch
    params.n_seq_max = facts.n_places
    params.n_threads = params.n_threads_batch = setting.n_threads
    params.kv_unified = True  # one stream: any sequence may use any cell, and prefixes can be shared
    params.no_perf = True
    is_fused = setting.flash_attention
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if is_fused else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params
