"""The categories of tensors that quantization distinguishes by name, and the tensors that it never quantizes.

Source: llama.cpp src/llama-quant.cpp (tensor_get_category, tensor_allows_quantization) and llama-model-loader.h
(weight_name_comparer) as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto


class Category(Enum):
    """The role of a tensor, as far as it decides how many bits it deserves."""

    EMBEDDING = auto()
    OUTPUT = auto()
    QUERY = auto()
    KEY = auto()
    VALUE = auto()
    ATTENTION_OUTPUT = auto()
    UP = auto()
    GATE = auto()
    DOWN = auto()
    OTHER = auto()


_BY_NAME = {
    "output.weight": Category.OUTPUT,
    "token_embd.weight": Category.EMBEDDING,
    "per_layer_token_embd.weight": Category.EMBEDDING,
}
# In order: the first part that a name contains decides.
_BY_PART = (
    ("attn_qkv.weight", Category.VALUE),
    ("attn_kv_b.weight", Category.VALUE),
    ("attn_v.weight", Category.VALUE),
    ("attn_k.weight", Category.KEY),
    ("attn_q.weight", Category.QUERY),
    ("attn_output.weight", Category.ATTENTION_OUTPUT),
    ("ffn_up", Category.UP),
    ("ffn_gate", Category.GATE),
    ("ffn_down", Category.DOWN),
)
_KEPT_NAMES = {"position_embd.weight", "token_types.weight"}
_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight"),
    *("time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight"),
    *("time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd"),
    *("sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook"),
    "mm.a.code_embd",
)
_KEPT_PARTS_OF = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight"),
        *("ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    )
}
_LAYER = re.compile(r"blk\.(\d+)\.")


def category_of(name: str) -> Category:
    """Return the category of the tensor called `name`."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((kind for part, kind in _BY_PART if part in name), Category.OTHER)


def allows_quantization(name: str, shape: Sequence[int], architecture: str) -> bool:
    """Return whether a tensor is quantized: matrices of weights are, norms and small or sensitive tensors are not."""
    if n_dims(shape) < 2 or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return not any(part in name for part in (*_KEPT_PARTS, *_KEPT_PARTS_OF.get(architecture, ())))


def n_dims(shape: Sequence[int]) -> int:
    """Return the dimensions as ggml counts them: trailing ones do not count. At least 1."""
    return max((i + 1 for i, extent in enumerate(shape) if extent > 1), default=1)


def in_loading_order(name: str) -> tuple[int, bytes]:
    """Return the sort key of llama.cpp's tensor map: tensors of no layer first, then layer by layer, then by name."""
    match = _LAYER.match(name)
    return (int(match[1]) if match else -1, name.encode())
