"""Which model files have a layer that predicts further tokens, and which of those layers can draft here. Pure.

Owns what must be in a file before llama.cpp may be asked to run the layer: it ends the process where something lacks.
Source: graph_mtp in llama.cpp src/models as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.gate import tensors_of
from quantizer.header import Header

__all__ = ["PredictionLayer", "has_prediction_layers", "prediction_layer"]

_NEXT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
_EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED_EXPERT = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b")
# Tensors of the layer by architecture. Left out: those whose cache cannot be cut (recurrent, hybrid, sliding window),
# and those that llama.cpp loads and never runs.
_NEEDED: dict[str, tuple[str, ...]] = {
    "glm4moe": (*_NEXT, *_EXPERTS, "post_attention_norm"),
    "hy_v3": (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, "attn_q_norm", "attn_k_norm", "ffn_norm"),
    "deepseek2": (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, *_LATENT, "ffn_norm"),
}
_LITE_DEEPSEEK = (26, 27, 48)  # trunk layers of the deepseek2 models that llama.cpp reads without latent queries


@dataclass(frozen=True, slots=True)
class PredictionLayer:
    """A layer that predicts one token further; `n_bytes` are read for it, the output matrix included."""

    n_bytes: int


def has_prediction_layers(header: Header) -> bool:
    """Whether the file says that it has such layers."""
    return bool(header.integer(f"{header.architecture}.nextn_predict_layers"))


def prediction_layer(header: Header) -> PredictionLayer | None:
    """Return the layer where the file has one that can draft, None otherwise. Raises ModelFileError for a bad shard."""
    needed = _NEEDED.get(header.architecture)
    if needed is None or header.integer(f"{header.architecture}.nextn_predict_layers") != 1:
        return None
    n_trunk = (header.integer(f"{header.architecture}.block_count") or 1) - 1
    n_bytes = {tensor.name: tensor.n_bytes for tensor in tensors_of(header)}
    block = f"blk.{n_trunk}."
    if not _suits(header, n_trunk) or any(f"{block}{name}.weight" not in n_bytes for name in needed):
        return None
    own = sum(size for name, size in n_bytes.items() if name.startswith(block))
    return PredictionLayer(own + n_bytes.get("output.weight", n_bytes.get("token_embd.weight", 0)))


def _suits(header: Header, n_trunk: int) -> bool:
    """Whether the hyperparameters are ones that llama.cpp runs the layer with."""
    prefix = header.architecture
    if (header.integer(f"{prefix}.leading_dense_block_count") or 0) > n_trunk:
        return False
    if prefix != "deepseek2":
        return True
    lengths = ("attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla")
    is_latent = all(header.integer(f"{prefix}.{length}") for length in lengths)
    return is_latent and n_trunk not in _LITE_DEEPSEEK and f"{prefix}.attention.temperature_scale" not in header.fields
