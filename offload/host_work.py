"""What a processor does for a token beside reading: it unpacks weights, and it attends to what is in the cache. Pure.

Owns the tables, in bytes that the processor could have read meanwhile; a GPU does both while it reads, and only bytes
count there. Knows nothing of how fast a processor is. Measured with one or two threads for each channel of memory, of
2 AVX-512 cores that read 18 GB/s: one layer after the other in each type, and attention at 512, 1,792 and 3,584 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantizer.header import Header
from quantizer.hyperparameters import layer_values
from quantizer.layer_caches import LayerCaches
from quantizer.tensor_types import tensor_type

__all__ = ["attention_bytes", "unpacking_bytes"]

# By type, for each weight.
# fmt: off
_UNPACKING = {
    "F32": 0.0, "F16": 0.09, "BF16": 0.34, "Q8_0": 0.56, "Q6_K": 0.31, "Q5_K": 0.47, "Q5_0": 0.92, "Q5_1": 0.92,
    "Q4_K": 0.4, "Q4_0": 0.47, "Q4_1": 0.47, "IQ4_NL": 0.47, "IQ4_XS": 0.63, "MXFP4": 0.38, "Q3_K": 0.65, "IQ3_S": 1.87,
    "Q2_K": 0.43, "IQ2_S": 1.04,
}
# fmt: on
_UNPACKING_OF_OTHERS = 1.0
_SCORE_BYTES = 180  # the softmax of one head and one token, beside the products of its elements: a byte for each
_FUSED_FACTOR = 3.5  # fused attention takes so many times as long on a processor
_STATE_BYTES = 8.0  # each element of a state is read and written
_CELL_BLOCK = 256  # attention that is not fused computes whole blocks of cells, masked ones too


def unpacking_bytes(type_id: int, n_weights: float) -> float:
    """Return what `n_weights` of a type take beyond the reading."""
    return n_weights * _UNPACKING.get(tensor_type(type_id).name, _UNPACKING_OF_OTHERS)


def attention_bytes(header: Header, caches: LayerCaches, depth: int, *, is_fused: bool) -> tuple[float, ...]:
    """Return what each answering layer takes behind `depth` tokens; fused attention passes over what it cannot see."""
    return tuple(_by_layer(header, caches, depth, is_fused=is_fused))


def _by_layer(header: Header, caches: LayerCaches, depth: int, *, is_fused: bool) -> Iterator[float]:
    layers = caches.answering
    heads = layer_values(header, "attention.head_count", len(layers))
    kv_heads = layer_values(header, "attention.head_count_kv", len(layers))
    for layer, n_heads, n_kv_heads in zip(layers, heads, kv_heads, strict=True):
        sharing = n_kv_heads or n_heads or 1
        k_head = layer.k_elements / sharing
        score_bytes = _SCORE_BYTES + k_head + (layer.v_elements / sharing or k_head)
        if not layer.k_elements:
            yield _STATE_BYTES * layer.state_elements
        elif is_fused:
            n_seen = min(depth, caches.n_window or depth) if layer.is_windowed else depth
            yield _FUSED_FACTOR * n_heads * n_seen * score_bytes
        else:
            yield n_heads * _CELL_BLOCK * (depth // _CELL_BLOCK + 1) * score_bytes
