"""Loaded weights, the contexts created over them, the dry run without weights, and vocabularies alone.

Owns loading, the native arrays of a placement and the parameters of contexts. Independent of what is computed and of
how sizes and placements are chosen.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.embedding import Pooling
from app.engine.llama.assistant_context import AssistantContext
from app.engine.llama.context import LlamaAdapters, LlamaBackend, NativeContext
from app.engine.llama.devices import buffer_bytes_by_device, ggml_gpus, gpu_address
from app.engine.llama.embedder import LlamaEmbedder
from app.engine.llama.head_backend import HeadBackend, HeadContext
from app.engine.llama.head_contexts import BlockContext, ChainedMtpContext, EagleContext, MtpContext, SelectorContext
from app.engine.llama.host_memory import HugePages, new_zero_pages_given_back
from app.engine.llama.native import EvalObserver, architecture_of, ggml_function, lib, load_error, native_log
from app.engine.llama.projector import LlamaProjector, ProjectorOptions
from app.engine.llama.rope_scaling import context_params
from app.engine.llama.step_weights import (
    PlainWeights,
    StepWeights,
    UntiledWeights,
    UsedWeights,
    WantedWeights,
    WeightCopies,
    copied_weights,
    repacked_pattern,
    repacked_weights,
    repacking_buffer_type,
    weights_as_in_file,
)
from app.engine.media.chunks import MediaDecoder
from app.engine.messages import BackendFacts, EngineConfig, Truncation
from app.engine.request import Adapter
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from app.engine.speculative.draft_model import Vocabulary
from app.engine.tuning.tune_results import COPY_FROM, RuntimeSettings
from offload.footprint.auxiliary_models import HEAD_BATCH
from offload.footprint.kv_cache import DRAFT_CELLS, n_holds, n_rollback, n_seq_max, parse_kv_types
from offload.footprint.model import RunConfig
from offload.placement.load_parameters import LoadMode, LoadParameters
from quantizer.gguf.header import Header, read_header
from quantizer.system.errors import EngineError

N_BATCH = 512
_SHORTEST = 64  # tokens of a context that shows the model's weights
_NOTHING = b"^$"  # matches the name of no tensor
_HEAD_CONTEXTS: dict[HeadKind, type[HeadContext]] = {
    HeadKind.EAGLE3: EagleContext,
    HeadKind.DFLASH: BlockContext,
    HeadKind.DFLASH2: SelectorContext,
    HeadKind.DSPARK: BlockContext,
    HeadKind.ASSISTANT: AssistantContext,
}
_UNREAD = "wrong number of tensors"  # `done_getting_tensors` in src/llama-model-loader.cpp
_LOAD_MODES = {
    LoadMode.AUTO: lib.LLAMA_LOAD_MODE_AUTO,
    LoadMode.NONE: lib.LLAMA_LOAD_MODE_NONE,
    LoadMode.MMAP_MLOCK: lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """The weights of a draft head and what it needs; `key` is the fingerprint of its file."""

    model: LlamaModel
    spec: HeadSpec
    key: str


class LlamaModel:
    """Loaded weights; contexts of several settings may run over them."""

    def __init__(
        self,
        path: Path,
        parameters: LoadParameters,
        extra_buffers: bool,
        on_progress: Callable[[float], bool],
        *,
        with_mtp: bool = False,
        is_writable: bool = False,
        repacked_types: Sequence[str] = (),
        observer: EvalObserver | None = None,
    ) -> None:
        """Load the validated model at `path`, placed by `parameters`, its MTP layers only `with_mtp`. Weights that are
        `is_writable` are in this process's memory, not in the file's pages. With `extra_buffers` all weights are
        repacked that llama.cpp can, or those of `repacked_types` alone. `on_progress` gets fractions from 0 to 1 and
        returns False to cancel. `observer` gets the graph nodes of contexts that have none of their own. Raises
        EngineError with llama.cpp's message, MemoryShortError without memory."""
        self._owned = ExitStack()
        huge_pages = HugePages(has_gpu=next(ggml_gpus(), None) is not None)

        def loads_on(fraction: float, _data: object) -> bool:
            huge_pages.ask()  # at the first call the buffers are allocated, and nothing was read into them yet
            return on_progress(fraction)

        progress = lib.llama_progress_callback(loads_on)
        params = _model_params()
        # Extra buffers take every weight that they can, also where a pattern names the processor's memory; a pattern
        # that names the extra buffer itself is followed without them.
        chosen = repacked_pattern(read_header(path), repacked_types) if extra_buffers and repacked_types else ""
        buffer_type = repacking_buffer_type() if chosen and not parameters.devices else None
        self._parameters, self._placement = parameters, PlacementParams(parameters, chosen, buffer_type)
        self._placement.fill(params)
        params.use_extra_bufts = extra_buffers and buffer_type is None
        params.progress_callback = progress
        params.load_mtp = self._has_mtp = with_mtp
        if is_writable:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        self._model = self._owned.enter_context(_loaded(path, params))
        self._observer = observer
        self._adapters: tuple[Adapter, ...] = ()
        self._plain: PlainWeights | None = None
        self._copies: WeightCopies | None = None
        self._untiled: UntiledWeights | None = None
        self._used: UsedWeights | None = None
        self._llama_adapters = LlamaAdapters(self._model, {})
        if not lib.llama_vocab_type(lib.llama_model_get_vocab(self._model)):  # tokenizing would end the process
            self.close()
            raise EngineError(f"{path.name} has no vocabulary.", "Choose a chat, completion or embedding model.")

    def context(
        self,
        config: EngineConfig,
        setting: RuntimeSettings,
        observer: EvalObserver | None = None,
        head: LoadedHead | None = None,
        *,
        copies: WeightCopies | None = None,
        copy_from: int = COPY_FROM,
        with_mtp: bool = True,
    ) -> LlamaBackend:
        """Return a backend over these weights; close it before the model. Raises EngineError without memory for it. It
        is a HeadBackend with a `head`, and `with_mtp` if those layers were loaded. `observer` gets all graph nodes.
        Steps of at least `copy_from` tokens use `copies`, which it frees, or if the setting has copies those of the
        model."""
        placed = self._parameters
        is_on_gpu = placed.n_gpu_layers > 0 and placed.offload_kqv
        facts = replace(
            _facts(self._model, config, setting),
            is_on_host=not is_on_gpu,
            fetches_weights=placed.fetches_weights,
            n_outputs=0 if config.n_batch else placed.n_outputs,  # who chooses a batch has logits for all of it
        )
        with ExitStack() as owned:
            params = self._context_params(facts, setting)
            if (observed := observer or self._observer) is not None:
                params.cb_eval = observed.callback
            context = self._new_context(params, owned)
            # A model without a cache (an encoder) computes whole texts and cannot continue one. llama_decode ends the
            # process for a model with an encoder (T5), unless a prompt was encoded before.
            can_generate = bool(lib.llama_get_memory(context)) and not lib.llama_model_has_encoder(self._model)
            facts = replace(facts, can_generate=can_generate, adapters=self._adapters)
            used = copies or (self._copies if setting.copies else None)
            weights = None
            if self._plain or used or self._untiled:
                weights = StepWeights(
                    self._plain,
                    setting.plain_from,
                    used,
                    copy_from,
                    owns_copies=copies is not None,
                    answers_copy=copy_from < COPY_FROM,
                    untiled=self._untiled,
                )
            if head is not None:
                key, head_context = head.key, head.model._new_head(head.spec, facts, setting, context, owned)  # noqa: SLF001
            elif with_mtp and self._has_mtp:
                key, head_context = "mtp", self._new_mtp(facts, setting, weights, owned)
            else:
                owned.pop_all()
                return LlamaBackend(NativeContext(self._model, context, facts, self._llama_adapters, weights))
            owned.pop_all()
        facts = replace(facts, layout=f"{facts.layout}-{key}")
        return HeadBackend(NativeContext(self._model, context, facts, self._llama_adapters, weights), head_context)

    def embedder(self, config: EngineConfig, setting: RuntimeSettings, pooling: Pooling) -> LlamaEmbedder:
        """Return an embedder over these weights; close it before the model. Raises EngineError without memory."""
        return LlamaEmbedder(self._model, config, setting, pooling, self._llama_adapters)

    def projector(self, path: Path, options: ProjectorOptions, decoder: MediaDecoder) -> LlamaProjector:
        """Return the validated projector at `path` for these weights; close it before the model. Raises as it does."""
        return LlamaProjector(path, self._model, options, decoder)

    def load_adapters(self, adapters: Mapping[Adapter, Path], control_vector: NDArray[np.float32] | None) -> None:
        """Load validated adapters and a control vector for all contexts created from now on. The control vector has
        shape (n_layers - 1, n_embd). Raises EngineError with llama.cpp's message."""
        paths = {adapter.key: path for adapter, path in adapters.items()}
        self._llama_adapters = LlamaAdapters(self._model, paths, control_vector)
        self._adapters = tuple(adapters)

    def map_plain_weights(self, header: Header, wanted: WantedWeights | None = None) -> int:
        """Map the weights that were repacked at loading once more, as the file of `header` has them. Contexts created
        from now on choose between both if their setting has `plain_from`. Return the mapped bytes, 0 where no weight is
        repacked. `wanted` says which weights gain by it."""
        addresses = self._addresses(wanted or repacked_weights())
        if not addresses:
            return 0
        self._plain = PlainWeights(header, addresses)
        self._owned.callback(self._plain.close)
        return self._plain.n_bytes

    def add_copies(self, copies: Mapping[str, str], has_room: Callable[[int], bool]) -> int:
        """Let contexts created from now on compute with `copies`, if their setting has any. Return their bytes. Raises
        as `new_copies`."""
        self._copies = self.new_copies(copies, has_room)
        if self._copies is None:
            return 0
        self._owned.callback(self._copies.close)
        return self._copies.n_bytes

    def leave_out_tiles(self, tiled_from: Mapping[str, int]) -> None:
        """Let contexts created from now on compute without ggml's tiled kernels below so many rows as `tiled_from` has
        for a type of weights, by its name."""
        addresses = self._addresses(weights_as_in_file(tiled_from))
        self._untiled = UntiledWeights(addresses, tiled_from) if addresses else None

    def new_copies(self, copies: Mapping[str, str], has_room: Callable[[int], bool]) -> WeightCopies | None:
        """Return `copies` of these weights, by the names of types and kinds; None where none has such a type. They are
        closed before the model. Raises EngineError without address space."""
        addresses = self._addresses(copied_weights(copies))
        try:
            return WeightCopies(addresses, copies, has_room) if addresses else None
        except OSError as error:
            raise EngineError(
                "There is no memory for a copy of weights.", "Close programs that take memory."
            ) from error

    def _addresses(self, wanted: WantedWeights) -> tuple[int, ...]:
        if self._used is None:
            found = UsedWeights()
            setting = RuntimeSettings(n_threads=1, flash_attention=False, extra_buffers=True)
            with closing(self.context(EngineConfig(n_ctx=_SHORTEST, n_sequences=1), setting, found)) as backend:
                backend.decode([Chunk(0, 0, [0], 1)])
            self._used = found
        return self._used.addresses(wanted)

    def vocabulary(self) -> Vocabulary:
        vocab = lib.llama_model_get_vocab(self._model)
        return Vocabulary(
            kind=lib.llama_vocab_type(vocab),
            begin=lib.llama_vocab_bos(vocab) if lib.llama_vocab_get_add_bos(vocab) else None,
            end=lib.llama_vocab_eos(vocab) if lib.llama_vocab_get_add_eos(vocab) else None,
            texts=[lib.llama_vocab_get_text(vocab, token) for token in range(lib.llama_vocab_n_tokens(vocab))],
        )

    def close(self) -> None:
        self._owned.close()

    def _new_context(self, params: lib.llama_context_params, owned: ExitStack) -> int:
        with new_zero_pages_given_back(has_gpu=next(ggml_gpus(), None) is not None):
            context: int | None = lib.llama_init_from_model(self._model, params)
        if not context:
            what = f"llama.cpp cannot make a context of {params.n_ctx} tokens"
            raise load_error(what, native_log().last_lines(), "Use a smaller --ctx, or a smaller model.")
        owned.callback(lib.llama_free, context)
        self._llama_adapters.attach(context)
        return context

    def _new_mtp(
        self, facts: BackendFacts, setting: RuntimeSettings, weights: StepWeights | None, owned: ExitStack
    ) -> HeadContext:
        n_layers = lib.llama_model_n_layer_nextn(self._model)
        n_batch = max(facts.n_batch, n_layers * facts.n_seq_max)  # later layers compute a draft of each answer whole
        n_cells = facts.n_cells + facts.n_sequences * DRAFT_CELLS
        # The layers have attention and no state, even where the model has states.
        facts = replace(facts, n_cells=n_cells, n_batch=n_batch, truncation=Truncation())
        params = self._context_params(facts, setting)
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        params.n_outputs_max = facts.n_seq_max  # a row for each answer, not for a whole batch; with fewer it aborts
        params.swa_full = True  # a rejected draft may return to any position, in a layer with a window too
        spec = HeadSpec(HeadKind.MTP, target_layers=(lib.llama_model_n_layer(self._model),), n_layers=n_layers)
        first, *later = (
            NativeContext(self._model, self._new_context(params, owned), facts, self._llama_adapters, weights)
            for _ in range(n_layers)
        )
        if not later:
            return MtpContext(first, spec)
        return ChainedMtpContext(first, spec, [MtpContext(other, spec, 1 + i) for i, other in enumerate(later)])

    def _new_head(
        self, spec: HeadSpec, facts: BackendFacts, setting: RuntimeSettings, target: int, owned: ExitStack
    ) -> HeadContext:
        """Return a context of these weights, a head's, beside the `target` context, whose `facts` it gets."""
        facts = replace(facts, model_bytes=lib.llama_model_size(self._model), adapters=())
        if spec.kind is HeadKind.MTP:
            return self._new_mtp(facts, setting, None, owned)
        is_assistant = spec.kind is HeadKind.ASSISTANT  # whose cells are the model's
        n_rows = facts.n_seq_max if is_assistant else max(HEAD_BATCH, facts.n_seq_max)
        n_cells = facts.n_cells + (0 if is_assistant else facts.n_sequences * DRAFT_CELLS)
        facts = replace(facts, n_cells=n_cells, n_batch=n_rows, truncation=Truncation())
        params = self._context_params(facts, replace(setting, n_ubatch=n_rows))
        params.n_outputs_max = n_rows
        params.ctx_other = target
        params.swa_full = not is_assistant  # a rejected draft may return to any position
        if is_assistant:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP  # its hidden states come with the tokens
        native = NativeContext(self._model, self._new_context(params, owned), facts, self._llama_adapters)
        return _HEAD_CONTEXTS[spec.kind](native, spec)

    def _context_params(self, facts: BackendFacts, setting: RuntimeSettings) -> lib.llama_context_params:
        params = context_params(self._model)
        n_sequences = facts.n_seq_max + facts.truncation.n_holds
        params.n_ctx = facts.n_cells
        params.n_batch = max(facts.n_batch, n_sequences)  # llama.cpp needs a row of logits for each, or aborts
        params.n_ubatch = min(facts.n_batch, setting.n_ubatch)
        # Of heads and embedders each row may be an output; an output beyond the limit ends the process.
        params.n_outputs_max = max(facts.n_outputs, n_sequences) if 0 < facts.n_outputs < params.n_batch else 0
        params.type_k, params.type_v = parse_kv_types(setting.kv_type).ids
        params.n_seq_max, params.n_rs_seq = n_sequences, facts.truncation.n_rollback
        params.n_threads = params.n_threads_batch = setting.n_threads
        params.kv_unified = True  # else llama_memory_seq_cp of a part aborts, and prefixes cannot be shared
        params.swa_full = False  # cells for the window of each sequence, not for whole contexts
        params.no_perf = True
        params.offload_kqv = self._parameters.offload_kqv
        params.op_offload = self._parameters.op_offload
        params.flash_attn_type = _flash_attention(is_fused=setting.flash_attention, parameters=self._parameters)
        return params


def _facts(model: int, config: EngineConfig, setting: RuntimeSettings) -> BackendFacts:
    n_ctx_train = lib.llama_model_n_ctx_train(model)
    n_ctx = config.n_ctx or n_ctx_train
    n_window = max(0, lib.llama_model_n_swa(model))
    n_batch = config.n_batch or max(N_BATCH, setting.n_ubatch)
    has_states = not _supports_truncation(model)
    truncation = Truncation(
        has_states=has_states,
        n_window=n_window,
        n_rollback=n_rollback(architecture_of(model), min(n_batch, setting.n_ubatch)),
        n_holds=n_holds(config.n_sequences, supports_truncation=not has_states),
    )
    description = ctypes.create_string_buffer(128)
    lib.llama_model_desc(model, description, len(description))
    return BackendFacts(
        description=description.value.decode("utf-8", "replace"),
        n_vocab=lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)),
        n_ctx=n_ctx,
        n_ctx_train=n_ctx_train,
        n_cells=max(n_ctx, config.n_cells),
        n_sequences=config.n_sequences,
        n_seq_max=_n_seq_max(model, config.n_sequences),
        truncation=truncation,
        # With windows a batch is one ubatch: later ones would overwrite the cells that a rejected draft returns to.
        n_batch=min(n_batch, setting.n_ubatch) if n_window else n_batch,
        n_ubatch=min(n_batch, setting.n_ubatch),
        passes_over_cells=not setting.flash_attention,
        has_attention=not lib.llama_model_is_recurrent(model),
        n_parameters=lib.llama_model_n_params(model),
        model_bytes=lib.llama_model_size(model),
        # without fused attention llama.cpp stores values transposed, so states do not fit the other kind
        layout=f"{'flash' if setting.flash_attention else 'plain'}-{setting.kv_type.replace(',', '-')}",
    )


@contextmanager
def vocabulary_alone(path: Path) -> Iterator[int]:
    """Load only the vocabulary of the validated model at `path`, and yield the pointer to that model. Raises
    EngineError with llama.cpp's message."""
    params = _model_params()
    params.vocab_only = True
    with _loaded(path, params) as model:
        yield model


def _model_params() -> lib.llama_model_params:
    lib.llama_backend_init()
    return lib.llama_model_default_params()


@contextmanager
def _loaded(path: Path, params: lib.llama_model_params) -> Iterator[int]:
    """Load the file at `path`, yield the pointer and free it. Raises EngineError with llama.cpp's message."""
    log = native_log()
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise load_error(f"llama.cpp cannot load {path.name}", log.last_lines(), "See `localllm show`.")
    try:
        yield model
    finally:
        lib.llama_model_free(model)


def dry_compute_bytes(path: Path, config: RunConfig, parameters: LoadParameters) -> dict[str, int]:
    """Return the bytes of each device's compute buffers by its name, the processor's included, by llama.cpp itself. The
    validated model at `path` is placed by `parameters`; answers and cached sequences share the cells of `config`.
    Raises EngineError if llama.cpp cannot run the model, or a device no longer exists."""
    params, placement, log = _model_params(), PlacementParams(parameters), native_log()
    placement.fill(params)
    _leave_out_weights(params)
    with _loaded(path, params) as model:
        log.take_buffers()
        context = lib.llama_init_from_model(model, dry_context_params(model, config, parameters))
        if not context:
            raise EngineError(f"llama.cpp cannot make this context: {log.last_lines()}", "Use a smaller --ctx.")
        lib.llama_free(context)
    return {name: held.compute_bytes for name, held in buffer_bytes_by_device(log.take_buffers()).items()}


def unread_tensors(path: Path, names: Iterable[str], *, has_graph: bool) -> list[str]:
    """Return those of `names` that llama.cpp does not read of the model at `path`, by loading it without memory for
    weights. With `has_graph` its graph is built as well, which fails without a tensor that only a computation needs.
    Raises EngineError with llama.cpp's message where it fails for another reason than unread tensors."""
    params, log = _model_params(), native_log()
    _leave_out_weights(params)
    params.n_gpu_layers = 0
    loaded: set[str] = set()
    log.loaded_tensors = loaded
    try:
        with _loaded(path, params) as model:
            if has_graph:
                _build_graph(model)
    except EngineError as error:
        if _UNREAD not in error.cause:
            raise
    finally:
        log.loaded_tensors = None
    return [name for name in names if name not in loaded]


def _build_graph(model: int) -> None:
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = _SHORTEST
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise EngineError(f"llama.cpp cannot run this model: {native_log().last_lines()}", "Choose another model.")
    lib.llama_free(context)


def _leave_out_weights(params: lib.llama_model_params) -> None:
    params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE  # with mmap llama.cpp 0.3.36 asserts and aborts
    params.use_extra_bufts = False


def dry_context_params(model: int, config: RunConfig, parameters: LoadParameters) -> lib.llama_context_params:
    params = lib.llama_context_default_params()
    params.n_ctx = config.n_cells
    supports_truncation = _supports_truncation(model)
    params.n_seq_max = _n_seq_max(model, config.n_sequences)
    params.n_seq_max += n_holds(config.n_sequences, supports_truncation=supports_truncation)
    params.n_rs_seq = n_rollback(architecture_of(model), config.n_ubatch)
    params.swa_full = False
    params.n_batch = params.n_ubatch = config.n_ubatch
    if 0 < config.n_outputs < config.n_ubatch:
        params.n_outputs_max = max(config.n_outputs, params.n_seq_max)
    params.type_k, params.type_v = config.kv_types.ids
    params.kv_unified = True
    params.offload_kqv, params.op_offload = parameters.offload_kqv, parameters.op_offload
    params.flash_attn_type = _flash_attention(is_fused=config.is_fused, parameters=parameters)
    return params


def _flash_attention(*, is_fused: bool, parameters: LoadParameters) -> int:
    if not is_fused:
        return int(lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    # AUTO would not fuse where layers are on GPUs and the cache stays on the processor, or where a GPU computes
    # with weights of the processor's layers: it compares the device of attention with that of the layer.
    is_elsewhere = parameters.fetches_weights or not parameters.offload_kqv
    return int(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if is_elsewhere else lib.LLAMA_FLASH_ATTN_TYPE_AUTO)


def _supports_truncation(model: int) -> bool:
    """Return whether a loaded model's cache can be truncated; `offload.footprint.kv_cache` decides it from a header."""
    return not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def _n_seq_max(model: int, n_sequences: int) -> int:
    has_windows = lib.llama_model_n_swa(model) > 0
    return n_seq_max(n_sequences, supports_truncation=_supports_truncation(model), has_windows=has_windows)


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override@0.3.36."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


class PlacementParams:
    """The native arrays of `parameters`, to which llama.cpp keeps pointers: must exist as long as the model. Tensors
    whose names match `repacked` go to the memory of `buffer_type`, if there is one. Raises EngineError if a device no
    longer exists."""

    def __init__(self, parameters: LoadParameters, repacked: str = "", buffer_type: int | None = None) -> None:
        self._parameters = parameters
        devices = [gpu_address(name) for name in parameters.devices]
        self._devices = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        self._split = (ctypes.c_float * lib.llama_max_devices())(*parameters.tensor_split)
        host_memory = ggml_function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        # With any pattern llama.cpp does not pipeline: that keeps four copies of all that passes between GPUs, for
        # batches of several ubatches, which the engine never uses.
        pattern = parameters.host_pattern.encode() or (_NOTHING if len(devices) > 1 else None)
        overrides = [_Override(pattern, host_memory)] if pattern else []
        overrides += [_Override(repacked.encode(), buffer_type)] if buffer_type is not None else []
        self._overrides = (_Override * (len(overrides) + 1))(*overrides, _Override(None, None))

    def fill(self, params: lib.llama_model_params) -> None:
        params.n_gpu_layers = self._parameters.n_gpu_layers
        params.devices = ctypes.addressof(self._devices)
        params.tensor_split = self._split
        params.load_mode = _LOAD_MODES[self._parameters.load_mode]
        is_lazy = self._parameters.has_lazy_tables  # by itself llama.cpp would decide by another limit than the plan
        params.lazy_mode = lib.LLAMA_LAZY_MODE_ON if is_lazy else lib.LLAMA_LAZY_MODE_OFF
        if self._overrides[0].pattern:
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)
