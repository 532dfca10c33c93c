"""The memory that each layer of a model needs while it runs, in elements: keys and values per token, or a state per
sequence.

Owns llama.cpp's tables of sliding windows and of recurrent and hybrid architectures. Independent of element types and
of how many tokens there are. The engine keeps all cells of sliding layers, so that they can be truncated and copied:
`kv_shape_of` ignores windows on purpose.

Source: `load_arch_hparams` in src/models, `set_swa_pattern`, `n_embd_r` and `n_embd_s` in src/llama-hparams.cpp,
`create_memory` in src/llama-model.cpp and `llama_kv_cache` in src/llama-kv-cache.cpp, as vendored in llama-cpp-python
0.3.36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter, layer_values, per_layer

# Encoders and diffusion models compute whole texts at once and have no cache.
_WITHOUT_CACHE = frozenset(
    (
        *("bert", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe"),
        *("modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "wavtokenizer-dec"),
    )
)
# Sparse attention keeps keys of an indexer, too: of these they are counted.
_WITH_INDEX_KEYS = frozenset(["deepseek32", "glm-dsa"])
# These have further caches, which are not counted.
_WITH_OTHER_CACHES = frozenset(["deepseek4", "dflash", "dots3note", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"])
# The hybrid cache of these gets no filter in `create_memory`, so that it has every layer without a state.
_WITH_IDLE_CELLS = frozenset(["bailingmoe3"])
_GLM_5_2_CONTEXT = 1 << 20  # from this on every fourth layer has an indexer where a file does not list them
_GEMMA3N_OWN_LAYERS = 20  # the later ones read the caches of these


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Elements that one token leaves in a layer, and those of the state that one sequence has there."""

    k_elements: int = 0
    v_elements: int = 0
    state_elements: int = 0
    is_windowed: bool = False


@dataclass(frozen=True, slots=True)
class LayerCaches:
    """The layers of a model in order. The last `n_predicting` are only used by a context that drafts, though with
    `has_idle_cells` the model's own context has cells for them, too. `n_window` is in tokens, 0 without windows;
    `is_complete` is False where an architecture has further caches."""

    layers: tuple[LayerCache, ...]
    n_window: int = 0
    n_predicting: int = 0
    is_complete: bool = True
    has_idle_cells: bool = False

    @property
    def main_layers(self) -> tuple[LayerCache, ...]:
        return self.layers[: len(self.layers) - self.n_predicting]


def layer_caches_of(header: Header) -> LayerCaches:
    """Return the memory of each layer of a validated model; empty layers for an architecture without a cache."""
    n_all = hyperparameter(header, "block_count")
    n_predicting = min(hyperparameter(header, "nextn_predict_layers"), n_all)
    if header.architecture in _WITHOUT_CACHE:
        return LayerCaches((LayerCache(),) * n_all)
    n_layers = n_all - n_predicting
    n_window, windowed = _windows_of(header, n_layers)
    is_windowed = windowed + [False] * n_predicting
    rule = _RULES.get(header.architecture)
    kinds = (rule(header, n_layers) if rule else [(False, True)] * n_layers) + [(False, True)] * n_predicting
    n_state = _state_elements(header) if rule else 0
    n_own = n_all - hyperparameter(header, "attention.shared_kv_layers")
    if header.architecture == "gemma3n":
        n_own = min(_GEMMA3N_OWN_LAYERS, n_all)
    heads = [_head(header, suffix) for suffix in ("", "_swa")]
    has_own = f"{header.architecture}.attention.head_count_kv" in header.fields
    kv_heads = layer_values(header, "attention.head_count_kv" if has_own else "attention.head_count", n_all)
    index_keys = _index_keys(header, n_layers) + [0] * n_predicting
    layers = []
    for index, (has_state, has_attention) in enumerate(kinds):
        n_heads = kv_heads[index] if has_attention and index < n_own else 0
        k_head, v_head = heads[is_windowed[index]]
        k_elements = n_heads * k_head + index_keys[index]
        state_elements = n_state if has_state else 0
        layers.append(LayerCache(k_elements, n_heads * v_head, state_elements, is_windowed[index]))
    return LayerCaches(
        tuple(layers),
        n_window,
        n_predicting,
        is_complete=header.architecture not in _WITH_OTHER_CACHES,
        has_idle_cells=header.architecture in _WITH_IDLE_CELLS,
    )


def _index_keys(header: Header, n_layers: int) -> list[int]:
    """Return the elements that one token leaves in the indexer of each layer."""
    if header.architecture not in _WITH_INDEX_KEYS:
        return [0] * n_layers
    n_elements, types = hyperparameter(header, "attention.indexer.key_length"), "attention.indexer.types"
    is_listed = f"{header.architecture}.{types}" in header.fields
    if is_listed and header.architecture == "glm-dsa":
        return [n_elements * value for value in layer_values(header, types, n_layers)]
    has_few = header.architecture == "glm-dsa" and hyperparameter(header, "context_length") >= _GLM_5_2_CONTEXT
    return [0 if has_few and i > 1 and (i - 2) % 4 else n_elements for i in range(n_layers)]


def _head(header: Header, suffix: str) -> tuple[int, int]:
    """Return the elements of keys and of values of one head; latent attention keeps values within its keys."""
    n_heads = layer_values(header, "attention.head_count", 1)[0]
    even = hyperparameter(header, "embedding_length") // n_heads if n_heads else 0
    k, v = (
        hyperparameter(header, f"attention.{what}_length{suffix}")
        or hyperparameter(header, f"attention.{what}_length")
        or even
        for what in ("key", "value")
    )
    return k, 0 if hyperparameter(header, "attention.key_length_mla") else v


@dataclass(frozen=True, slots=True)
class KvShape:
    """Elements of keys and of values that one token takes: in all layers together, and in one head.
    Prediction layers count: they have a cache of their own when they draft."""

    k_elements: int
    v_elements: int
    k_head: int
    v_head: int


def kv_shape_of(header: Header) -> KvShape:
    """Return the shape that `header` describes, zeros where tokens leave nothing."""
    layers = layer_caches_of(header).layers
    k_elements, v_elements = (sum(layer.k_elements for layer in layers), sum(layer.v_elements for layer in layers))
    if not k_elements:
        return KvShape(0, 0, 0, 0)
    n_heads = int(max(per_layer(header, "attention.head_count"), default=1)) or 1
    even = hyperparameter(header, "embedding_length") // n_heads
    k_head, v_head = (hyperparameter(header, f"attention.{what}_length") or even for what in ("key", "value"))
    return KvShape(k_elements, v_elements, k_head, v_head if v_elements else 0)


_WINDOW_KEY, _PATTERN_KEY = "attention.sliding_window", "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One layer in `period` sees everything: the last of them, or the first. 0: all layers have the window. `default`
    is the window of a file that names none, `fixed` one that llama.cpp uses whatever the file has, and `n_layers` the
    only depth at which an architecture has windows at all."""

    period: int = 0
    is_dense_first: bool = False
    default: int = 0
    fixed: int = 0
    n_layers: int = 0

    def windows(self, index: int) -> bool:
        if not self.period:
            return True
        return index % self.period != (0 if self.is_dense_first else self.period - 1)


# Architectures whose pattern is in the file have a period only for form's sake.
_PATTERNS = {
    "afmoe": _Pattern(4),
    "cohere2": _Pattern(4),
    "cohere2moe": _Pattern(4, is_dense_first=True),
    "exaone-moe": _Pattern(4, default=128),
    "exaone4": _Pattern(4, default=4096, n_layers=64),
    "gemma2": _Pattern(2, default=4096),
    "gemma3": _Pattern(6),
    "gemma3n": _Pattern(5),
    "gemma4": _Pattern(6),
    "gpt-oss": _Pattern(2),
    "granite_swa": _Pattern(),
    "laguna": _Pattern(4, is_dense_first=True),
    "lfm2": _Pattern(),
    "lfm2moe": _Pattern(),
    "llama4": _Pattern(4, default=8192, fixed=8192),
    "maple": _Pattern(),
    "mellum": _Pattern(4),
    "mimo2": _Pattern(),
    "muse-glimmer": _Pattern(4),
    "olmo2": _Pattern(4),
    "plamo3": _Pattern(8),
    "smallthinker": _Pattern(4, is_dense_first=True, fixed=4096),
    "spark2_5": _Pattern(),
    "step35": _Pattern(),
}


def _windows_of(header: Header, n_layers: int) -> tuple[int, list[bool]]:
    """Return the tokens of the window, 0 for none, and for each layer but those that predict whether it has one."""
    pattern = _PATTERNS.get(header.architecture)
    if pattern is None or pattern.n_layers not in (0, n_layers):
        return 0, [False] * n_layers
    has_key = f"{header.architecture}.{_WINDOW_KEY}" in header.fields
    n_tokens = hyperparameter(header, _WINDOW_KEY) if has_key else pattern.default
    if not n_tokens:
        return 0, [False] * n_layers
    field = header.fields.get(f"{header.architecture}.{_PATTERN_KEY}")
    if field is not None and isinstance(field.value, ArrayRef):
        windowed = [bool(value) for value in layer_values(header, _PATTERN_KEY, n_layers)]
    else:
        named = hyperparameter(header, _PATTERN_KEY)
        chosen = _Pattern(named, pattern.is_dense_first) if named else pattern
        windowed = [chosen.windows(index) for index in range(n_layers)]
    return pattern.fixed or n_tokens, windowed


_DEFAULT_TOKEN_SHIFTS = 2


# (has a state, has attention) of each layer but those that predict.
_Kind = tuple[bool, bool]
_Rule = Callable[[Header, int], list[_Kind]]


def _without_kv_heads(header: Header, n_layers: int) -> list[_Kind]:
    return [(not n_heads, bool(n_heads)) for n_heads in layer_values(header, "attention.head_count_kv", n_layers)]


def _one_of_three(header: Header, n_layers: int) -> list[_Kind]:
    """Return the kinds of Nemotron-H's layers: each is a state, attention or a feed-forward."""
    kinds = _without_kv_heads(header, n_layers)
    widths = layer_values(header, "feed_forward_length", n_layers)
    return [(False, False) if width else kind for kind, width in zip(kinds, widths, strict=True)]


def _at_intervals(default: int) -> _Rule:
    """Return the rule for attention in the last of every so many layers."""

    def rule(header: Header, n_layers: int) -> list[_Kind]:
        if f"{header.architecture}.attention.recurrent_layers" in header.fields:
            values = layer_values(header, "attention.recurrent_layers", n_layers)
            return [(bool(value), not value) for value in values]
        interval = hyperparameter(header, "full_attention_interval") or default
        return [((index + 1) % interval != 0, (index + 1) % interval == 0) for index in range(n_layers)]

    return rule


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
        lambda _header, n_layers: [(True, False)] * n_layers,
    ),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _at_intervals(4)),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _one_of_three),
    **dict.fromkeys(
        ("bailingmoe3", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"),
        _without_kv_heads,
    ),
    "falcon-h1": lambda _header, n_layers: [(True, True)] * n_layers,
    "minimax-01": _at_intervals(8),
}


def _state_elements(header: Header) -> int:
    """Return the numbers that one sequence keeps in one layer: those of a convolution, and the state itself."""
    width = hyperparameter(header, "embedding_length")
    n_heads = max(layer_values(header, "attention.head_count", 1))
    if wkv_head := hyperparameter(header, "wkv.head_size"):
        return width * ((hyperparameter(header, "token_shift_count") or _DEFAULT_TOKEN_SHIFTS) + wkv_head)
    if n_cached := hyperparameter(header, "shortconv.l_cache"):
        return width * (n_cached - 1)
    kernel = hyperparameter(header, "ssm.conv_kernel")
    if kda_head := hyperparameter(header, "kda.head_dim"):
        return n_heads * kda_head * (3 * ((kernel or 4) - 1) + kda_head)
    if header.architecture == "minimax-01":
        return n_heads * (hyperparameter(header, "attention.key_length") or width // max(1, n_heads)) ** 2
    inner, state = hyperparameter(header, "ssm.inner_size"), hyperparameter(header, "ssm.state_size")
    n_convolved = inner + 2 * hyperparameter(header, "ssm.group_count") * state
    return max(0, kernel - 1) * n_convolved + state * inner
