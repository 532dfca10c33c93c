"""How many bytes each layer keeps of what it has seen: keys and values, padded as llama.cpp pads, and states. Pure.

Owns the count of cells. Knows nothing of who asks for how many.
Source: `llama_kv_cache`, `llama_kv_cache_iswa` and `llama_memory_recurrent` in src, as vendored in llama-cpp-python
0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload.kv_cache import KvTypes
from quantizer.layer_caches import LayerCaches

__all__ = ["CacheCells", "cache_layers", "cells_for", "head_cache"]

_CELL_BLOCK = 256
_STATE_BYTES = 4  # states are F32 whatever the cache's types


@dataclass(frozen=True, slots=True)
class CacheCells:
    """Tokens that layers with a full view and layers with a window have room for, and sequences that have states."""

    n_full: int
    n_windowed: int
    n_sequences: int


def cells_for(
    caches: LayerCaches, n_ctx: int, *, n_sequences: int = 1, n_ubatch: int = 512, keeps_all: bool = True
) -> CacheCells:
    """Return the cells of a cache of `n_ctx` tokens that all sequences share.

    Where it `keeps_all`, as the engine does, layers with a window have room for every token too.
    """
    n_full = _padded(n_ctx)
    n_seen = min(n_full, caches.n_window * n_sequences + n_ubatch)
    return CacheCells(n_full, n_full if keeps_all else _padded(n_seen), n_sequences)


def cache_layers(caches: LayerCaches, types: KvTypes, cells: CacheCells, *, is_fused: bool = True) -> tuple[int, ...]:
    """Return the bytes of each layer, none of those that only predict. The types must have passed `check_kv_types`.

    Without fused attention values lie transposed, in rows as long as those of the layer with the most.
    """
    v_sizes = {layer.v_elements for layer in caches.layers if layer.k_elements}
    v_padded = max(v_sizes) if len(v_sizes) > 1 and not is_fused else 0
    sizes = []
    for layer in caches.answering:
        n_cells = cells.n_windowed if layer.is_windowed else cells.n_full
        v_elements = max(layer.v_elements, v_padded) if layer.k_elements else 0
        state_bytes = layer.state_elements * _STATE_BYTES * cells.n_sequences
        sizes.append(types.n_bytes(layer.k_elements, v_elements) * n_cells + state_bytes)
    return (*sizes, *[0] * caches.n_predicting)


def head_cache(caches: LayerCaches, types: KvTypes, n_ctx: int) -> int:
    """Return the bytes that a prediction layer keeps of `n_ctx` tokens."""
    layer = caches.layers[-1]
    return types.n_bytes(layer.k_elements, layer.v_elements) * _padded(n_ctx)


def _padded(n_cells: int) -> int:
    return -(-n_cells // _CELL_BLOCK) * _CELL_BLOCK
