"""A processor's work for a token beside reading: unpacking weights, and attention over the cache. Pure.

Owns the tables, in bytes that the processor could have read meanwhile; a GPU does both while it reads, so only bytes
count there. Independent of a processor's speed. Measured on 2 AVX-512 cores that read 19 GB/s, a thread on each: layers
of one type each with rows of 512 to 8,192 weights, and attention of six shapes at 512, 1,792 and 3,584 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import layer_values
from quantizer.gguf.layer_caches import LayerCaches
from quantizer.gguf.tensor_types import TENSOR_TYPES, TensorType

# By type, for each weight. Those that are not quantized, Q8_0 and Q6_K come as fast as memory gives them.
# fmt: off
_UNPACKING = {
    "F32": 0.0, "F16": 0.0, "BF16": 0.0, "Q8_0": 0.04, "Q6_K": 0.0, "Q5_K": 0.18, "Q5_0": 0.43, "Q5_1": 0.43,
    "Q4_K": 0.21, "Q4_0": 0.24, "Q4_1": 0.24, "IQ4_NL": 0.24, "IQ4_XS": 0.29, "MXFP4": 0.17, "Q3_K": 0.22,
    "IQ3_S": 1.29, "Q2_K": 0.3, "IQ2_S": 0.57,
}
# fmt: on
_UNPACKING_OF_OTHERS = 1.0
# For each row of a matrix: what its sum takes, which repacked weights have for several rows at once.
_ROW_BYTES, _PLAIN_ROW_BYTES, _REPACKED_ROW_BYTES = 630.0, 0.0, 95.0
_REPACKED = ("Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4")
_SCORE_BYTES = 180  # the softmax of one head and one token, beside the products of its elements: a byte for each
_FUSED_FACTOR = 3.5  # fused attention takes so many times as long on a processor
_STATE_BYTES = 8.0  # each element of a state is read and written
_CELL_BLOCK = 256  # attention that is not fused computes whole blocks of cells, masked ones too


def unpacking_bytes(tensor: TensorInfo, read_share: float = 1.0) -> float:
    """Return the work on the weights of `tensor` beyond reading, where `read_share` of them is read."""
    type_ = TENSOR_TYPES[tensor.type_id]
    n_rows = tensor.n_elements / tensor.shape[0] if len(tensor.shape) > 1 else 0.0
    weights_bytes = tensor.n_elements * _UNPACKING.get(type_.name, _UNPACKING_OF_OTHERS)
    return read_share * (weights_bytes + n_rows * _row_bytes(type_))


def _row_bytes(type_: TensorType) -> float:
    if not type_.is_quantized:
        return _PLAIN_ROW_BYTES
    return _REPACKED_ROW_BYTES if type_.name in _REPACKED else _ROW_BYTES


def attention_bytes(header: Header, caches: LayerCaches, depth: int, *, is_fused: bool) -> Iterator[float]:
    """Yield the work of each main layer after `depth` tokens; fused attention skips masked cells."""
    layers = caches.main_layers
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
