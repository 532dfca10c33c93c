"""The KV cache: its element types, how many sequences and cells it has, its bytes per layer, and the context that fits.

Pure. Source: `kv_cache_types` in common/arg.cpp, `llama_init_from_model` in src/llama-context.cpp, `llama_kv_cache`,
`llama_kv_cache_iswa` and `llama_memory_recurrent` in src, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.gguf.layer_caches import KvShape, LayerCaches
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.system.errors import EngineError, UsageError

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")  # from most to fewest bits


@dataclass(frozen=True, slots=True)
class KvTypes:
    """The types of keys and of values, by their names in `KV_TYPES`."""

    k: str = "f16"
    v: str = "f16"

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"{self.k},{self.v}"

    @property
    def needs_flash_attention(self) -> bool:
        """Whether only fused attention can read the values: llama.cpp stores them transposed without it."""
        return _type(self.v).is_quantized

    @property
    def ids(self) -> tuple[int, int]:  # ggml's
        return _type(self.k).type_id, _type(self.v).type_id

    def n_bytes(self, k_elements: int, v_elements: int) -> int:
        return _type(self.k).row_bytes(k_elements) + _type(self.v).row_bytes(v_elements)


def parse_kv_types(text: str) -> KvTypes:
    """Parse `TYPE` or `K_TYPE,V_TYPE`; an empty text is f16. Raises UsageError for any other name."""
    names = text.lower().split(",") if text else ["f16"]
    if len(names) > 2 or any(name not in KV_TYPES for name in names):
        remedy = f"Give TYPE or K_TYPE,V_TYPE out of {', '.join(KV_TYPES)}."
        raise UsageError(f"{text!r} is not a KV cache type.", remedy)
    return KvTypes(names[0], names[-1])


def check_kv_types(types: KvTypes, shape: KvShape) -> None:
    """Raise UsageError where llama.cpp could not keep a cache of this shape in these types."""
    for what, name, head in (("Keys", types.k, shape.k_head), ("Values", types.v, shape.v_head)):
        if not _type(name).fits(head):
            cause = f"{what} of this model cannot be kept as {name}: its heads have {head} elements"
            raise UsageError(f"{cause}, and {name} stores {_type(name).block_size} at once.", "Use f16 or bf16.")
    if types.k != types.v and shape.k_elements and not shape.v_elements:
        raise UsageError(
            f"This model keeps keys and values as one vector, so they cannot be {types.k} and {types.v}.",
            f"Give one type, such as {types.k}.",
        )


def supports_kv_types(types: KvTypes, shape: KvShape) -> bool:
    try:
        check_kv_types(types, shape)
    except UsageError:
        return False
    return True


def bytes_per_cell(types: KvTypes, shape: KvShape) -> int:
    """Return the bytes that one token takes in all layers. The types must have passed `check_kv_types`."""
    return types.n_bytes(shape.k_elements, shape.v_elements)


def _type(name: str) -> TensorType:
    return tensor_type_named(name.upper())


_N_CACHED_SEQUENCES = 32  # sequences cached beside those being served; each costs only its cells
_N_CACHED_WINDOWS = 4  # each costs the cells of a window, whether or not it is in use
DRAFT_CELLS = 32  # per sequence, beside the cells of the model; drafts end where they do not suffice
_MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ of llama.cpp


def supports_truncation(caches: LayerCaches) -> bool:
    """Return whether such a model's cache can be truncated: states cannot, windows can as long as they are held."""
    return not any(layer.state_elements for layer in caches.layers)


def n_seq_max(n_sequences: int, *, supports_truncation: bool, has_windows: bool = False) -> int:
    """Return how many sequences the engine caches when it serves `n_sequences` at once. A state takes its memory
    whether or not it is in use, so without truncation only as many are cached as are served; windows take some too."""
    n_cached = _N_CACHED_WINDOWS if has_windows else _N_CACHED_SEQUENCES
    return min(n_sequences + (n_cached if supports_truncation else n_sequences), _MAX_SEQUENCES)


def n_cached_sequences(caches: LayerCaches, n_sequences: int) -> int:
    """Return how many sequences of such a model are cached when `n_sequences` are served at once."""
    has_windows = bool(caches.n_window)
    return n_seq_max(n_sequences, supports_truncation=supports_truncation(caches), has_windows=has_windows)


def n_holds(n_sequences: int, *, supports_truncation: bool) -> int:
    """Return how many copies of states the engine keeps beside the cached sequences, to return to after a draft."""
    if supports_truncation:
        return 0
    return min(n_sequences, _MAX_SEQUENCES - n_seq_max(n_sequences, supports_truncation=False))


_ROLLBACK_TOKENS = 15  # with the token before them a whole block of llama.cpp's kernels
# llama.cpp can keep the states of the last tokens of a batch, each as large as the sequence's own: some kilobytes where
# states are short convolutions. Those of qwen35 or nemotron_h have 19 MB and more, so those return to a held copy.
_WITH_SHORT_STATES = frozenset(["lfm2", "lfm2moe"])


def n_rollback(architecture: str, n_ubatch: int) -> int:
    """Return how many of the last tokens of a batch the engine can remove from a state; llama.cpp demands more in an
    ubatch."""
    return max(0, min(_ROLLBACK_TOKENS, n_ubatch - 2)) if architecture in _WITH_SHORT_STATES else 0


def n_states(caches: LayerCaches, n_sequences: int, architecture: str, n_ubatch: int) -> int:
    """Return how many states each layer with a state has: of each sequence, of each copy, and their earlier ones."""
    can_truncate = supports_truncation(caches)
    n_slots = n_seq_max(n_sequences, supports_truncation=can_truncate)
    n_copies = n_holds(n_sequences, supports_truncation=can_truncate)
    return (n_slots + n_copies) * (1 + n_rollback(architecture, n_ubatch))


_CELL_BLOCK = 256
_STATE_BYTES = 4  # states are F32 whatever the cache's types


@dataclass(frozen=True, slots=True)
class CacheCells:
    """Tokens that fit into layers with full attention and into layers with a window, and sequences that have states."""

    n_full: int
    n_windowed: int
    n_sequences: int


def cells_for(caches: LayerCaches, n_ctx: int, *, n_sequences: int = 1, n_ubatch: int = 512) -> CacheCells:
    """Return the cells of a cache of `n_ctx` tokens that all sequences share.
    Layers with a window have cells for that of each sequence and for a batch, if those are fewer."""
    n_full = _padded(n_ctx)
    n_windowed = n_window_cells(caches, n_sequences, n_ubatch) if caches.n_window else n_full
    return CacheCells(n_full, min(n_full, n_windowed), n_sequences)


def n_window_cells(caches: LayerCaches, n_sequences: int, n_ubatch: int = 512) -> int:  # of each sequence and a batch
    return _padded(caches.n_window * n_sequences + n_ubatch)


def cache_layers(caches: LayerCaches, types: KvTypes, cells: CacheCells, *, is_fused: bool = True) -> tuple[int, ...]:
    """Return the bytes of each layer, of those that only predict where they have idle cells. The types must have passed
    `check_kv_types`.
    Without fused attention values lie transposed, in rows as long as those of the layer with the most."""
    v_sizes = {layer.v_elements for layer in caches.layers if layer.k_elements}
    v_padded = max(v_sizes) if len(v_sizes) > 1 and not is_fused else 0
    sizes = []
    for layer in caches.main_layers:
        n_cells = cells.n_windowed if layer.is_windowed else cells.n_full
        v_elements = max(layer.v_elements, v_padded) if layer.k_elements else 0
        state_bytes = layer.state_elements * _STATE_BYTES * cells.n_sequences
        sizes.append(types.n_bytes(layer.k_elements, v_elements) * n_cells + state_bytes)
    idle = caches.layers[len(caches.main_layers) :] if caches.has_idle_cells else ()
    idle_sizes = [types.n_bytes(layer.k_elements, layer.v_elements) * cells.n_full for layer in idle]
    return (*sizes, *(idle_sizes or [0] * caches.n_predicting))


def prediction_cache_bytes(caches: LayerCaches, types: KvTypes, n_ctx: int) -> tuple[int, ...]:
    """Return the bytes of each layer that predicts: each has a context of its own, with a cache for all of them."""
    return tuple(
        caches.n_predicting * types.n_bytes(layer.k_elements, layer.v_elements) * _padded(n_ctx)
        for layer in caches.layers[len(caches.main_layers) :]
    )


def _padded(n_cells: int) -> int:
    return -(-n_cells // _CELL_BLOCK) * _CELL_BLOCK


DEFAULT_N_CTX = 8192  # longer prompts take minutes to compute on a CPU, so they are opt-in
DEFAULT_N_CELLS = 8192  # of one default context: what idle conversations had in them is saved, and restored for them
MIN_N_CTX = 2048  # a default below it would hardly hold a request and its answer
MEMORY_SHARE = 0.5  # of the memory beside the weights, for the default context
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """The facts known before a context is made. `n_ctx` 0 leaves it open; `n_ctx_train` 0 is unknown. `bytes_per_cell`
    is of all layers; `windowed_bytes_per_cell` of those with a window, which have at most `n_windowed_cells`.
    `free_bytes` is the memory for cache and weights; None where it is unknown."""

    n_ctx: int
    n_ctx_train: int
    n_sequences: int
    bytes_per_cell: int
    weight_bytes: int
    free_bytes: int | None
    windowed_bytes_per_cell: int = 0
    n_windowed_cells: int = 0

    def cache_bytes(self, n_cells: int) -> int:
        n_saved = max(0, n_cells - self.n_windowed_cells)
        return n_cells * self.bytes_per_cell - n_saved * self.windowed_bytes_per_cell


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """The longest sequence, the cells that all share, both in tokens, and a notice to the user, if any."""

    n_ctx: int
    n_cells: int
    notice: str = ""


def plan_context(request: ContextRequest) -> ContextPlan:
    """Return the context that fits: the requested one, or the default. More than fits is refused, for the cache is
    written to at once and the system would end some process for it; more than the model was trained on is granted with
    a notice, as some models bear it. Raises EngineError with the numbers."""
    n_fitting = _n_fitting(request, request.free_bytes)
    # the default context leaves memory for the weights, and half of the rest
    spare_bytes = None if request.free_bytes is None else max(0, request.free_bytes - request.weight_bytes)
    n_affordable = _n_fitting(request, None if spare_bytes is None else int(spare_bytes * MEMORY_SHARE))
    n_most = DEFAULT_N_CTX if n_affordable is None else max(MIN_N_CTX, min(DEFAULT_N_CTX, n_affordable))
    n_ctx = request.n_ctx or min(request.n_ctx_train or DEFAULT_N_CTX, n_most)
    if n_fitting is not None and n_ctx > n_fitting:
        assert request.free_bytes is not None
        needed, free = (n_bytes // _MIB for n_bytes in (request.cache_bytes(n_ctx), request.free_bytes))
        raise EngineError(
            f"Not enough memory: a context of {n_ctx:,} tokens needs {needed:,} MiB of KV cache; {free:,} MiB is free.",
            f"Use a --ctx of at most {n_fitting:,}, or a smaller --kv-type such as q8_0.",
        )
    n_wanted = max(n_ctx, min(n_ctx * request.n_sequences, DEFAULT_N_CELLS))
    n_cells = n_wanted if n_affordable is None else max(n_ctx, min(n_wanted, n_affordable))
    return ContextPlan(n_ctx, n_cells, _notice(request, n_ctx, n_fitting))


def _n_fitting(request: ContextRequest, n_bytes: int | None) -> int | None:
    """Return how many cells `n_bytes` hold, None where there is no limit."""
    if n_bytes is None or not request.bytes_per_cell:
        return None
    n_cells = n_bytes // request.bytes_per_cell
    full_bytes = request.bytes_per_cell - request.windowed_bytes_per_cell
    if n_cells <= request.n_windowed_cells or not request.windowed_bytes_per_cell:
        return n_cells
    return (n_bytes - request.n_windowed_cells * request.windowed_bytes_per_cell) // full_bytes if full_bytes else None


def _notice(request: ContextRequest, n_ctx: int, n_fitting: int | None) -> str:
    n_trained = request.n_ctx_train
    if n_trained and n_ctx > n_trained:
        return f"The context of {n_ctx:,} tokens is longer than the {n_trained:,} this model was trained on."
    n_possible = n_trained if n_fitting is None else min(n_trained, n_fitting)
    if request.n_ctx or n_possible <= n_ctx:
        return ""
    return (
        f"The context is {n_ctx:,} tokens; this model could use {n_possible:,}. "
        f"A longer request raises it where memory allows; F7 in the app or --ctx {n_possible} does so at once."
    )
