"""What each layer of a model keeps while it runs, in elements: keys and values of every token, or a state.

Owns how attention, windows, shared layers and states come together. Knows nothing of bytes or of how many tokens.
Source: `create_memory` in src/llama-model.cpp and `llama_kv_cache` in src/llama-kv-cache.cpp, as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.header import Header
from quantizer.hyperparameters import hyperparameter, layer_values
from quantizer.sliding import windows_of
from quantizer.states import states_of

__all__ = ["LayerCache", "LayerCaches", "layer_caches_of"]

# Encoders and diffusion models compute whole texts at once and keep nothing.
_WITHOUT_CACHE = frozenset(
    [
        "bert",
        "dream",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llada",
        "llada-moe",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "rnd1",
        "wavtokenizer-dec",
    ]
)
# Caches of sparse attention lie beside the others and are not counted here.
_WITH_INDEXERS = frozenset(
    ["deepseek32", "deepseek4", "dflash", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"]
)
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
    """The layers of a model in order. The last `n_predicting` are only used by a context that drafts.

    `n_window` is in tokens, 0 without windows; `is_complete` is False where an architecture keeps more than is here.
    """

    layers: tuple[LayerCache, ...]
    n_window: int = 0
    n_predicting: int = 0
    is_complete: bool = True

    @property
    def answering(self) -> tuple[LayerCache, ...]:
        """The layers that every answer goes through."""
        return self.layers[: len(self.layers) - self.n_predicting]


def layer_caches_of(header: Header) -> LayerCaches:
    """Return what the layers keep of a model that passed the gate; nothing for an architecture without a cache."""
    n_all = hyperparameter(header, "block_count")
    n_predicting = min(hyperparameter(header, "nextn_predict_layers"), n_all)
    if header.architecture in _WITHOUT_CACHE:
        return LayerCaches((LayerCache(),) * n_all)
    n_layers = n_all - n_predicting
    windows, states = windows_of(header, n_layers), states_of(header, n_layers)
    is_windowed = (*windows.is_windowed, *[False] * n_predicting)
    has_attention = (*states.has_attention, *[True] * n_predicting)
    n_own = _layers_with_caches(header, n_all)
    heads = [_Heads.of(header, suffix) for suffix in ("", "_swa")]
    kv_heads = _kv_heads(header, n_all)
    layers = []
    for index in range(n_all):
        n_heads = kv_heads[index] if has_attention[index] and index < n_own else 0
        head = heads[is_windowed[index]]
        state = states.elements[index] if index < n_layers else 0
        layers.append(LayerCache(n_heads * head.k, n_heads * head.v, state, is_windowed[index]))
    return LayerCaches(tuple(layers), windows.n_tokens, n_predicting, header.architecture not in _WITH_INDEXERS)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Elements of one head; latent attention keeps values within its keys."""

    k: int
    v: int

    @classmethod
    def of(cls, header: Header, suffix: str) -> _Heads:
        n_heads = layer_values(header, "attention.head_count", 1)[0]
        even = hyperparameter(header, "embedding_length") // n_heads if n_heads else 0
        k, v = (
            hyperparameter(header, f"attention.{what}_length{suffix}")
            or hyperparameter(header, f"attention.{what}_length")
            or even
            for what in ("key", "value")
        )
        return cls(k, 0 if hyperparameter(header, "attention.key_length_mla") else v)


def _kv_heads(header: Header, n_layers: int) -> list[int]:
    has_own = f"{header.architecture}.attention.head_count_kv" in header.fields
    return layer_values(header, "attention.head_count_kv" if has_own else "attention.head_count", n_layers)


def _layers_with_caches(header: Header, n_layers: int) -> int:
    if header.architecture == "gemma3n":
        return min(_GEMMA3N_OWN_LAYERS, n_layers)
    return n_layers - hyperparameter(header, "attention.shared_kv_layers")
