"""Qwen 2 and 3, dense and of experts."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter
from quantizer.architectures.experts import FUSED_EXPERTS, NUMBERED_EXPERTS
from quantizer.architectures.rows import DECODER, EXPERTS, RMS_NORM, integer
from quantizer.architectures.shapes import (
    ATTENTION,
    EXPERT_FEED_FORWARD,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    PRE_NORMS,
    QKV_BIASES,
    decoder,
)

__all__ = ["EXPERT_ROWS", "QWEN", "SHARED_EXPERT", "SHARED_EXPERT_ROW"]

EXPERT_ROWS = (*EXPERTS, Hyperparameter("expert_feed_forward_length", "u32", integer("moe_intermediate_size")))
SHARED_EXPERT_ROW = Hyperparameter(
    "expert_shared_feed_forward_length", "u32", integer("shared_expert_intermediate_size")
)
_ASSUMED = {"hidden_act": lambda _config: "silu", "use_sliding_window": lambda _config: False}
# in llama.cpp every layer has experts
_ASSUMED_OF_EXPERTS = {**_ASSUMED, "decoder_sparse_step": lambda _config: 1, "mlp_only_layers": lambda _config: []}
SHARED_EXPERT: Dimensions = {
    "ffn_gate_inp_shexp.weight": ("n_embd", 1),
    "ffn_gate_shexp.weight": ("n_embd", "n_ff_shared"),
    "ffn_up_shexp.weight": ("n_embd", "n_ff_shared"),
    "ffn_down_shexp.weight": ("n_ff_shared", "n_embd"),
}

QWEN = (
    Architecture(
        hf_classes=("Qwen2ForCausalLM",),
        gguf_name="qwen2",
        hyperparameters=DECODER + RMS_NORM,
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **ATTENTION, **QKV_BIASES, **GATED_FEED_FORWARD},
        assumed=_ASSUMED,
    ),
    Architecture(
        hf_classes=("Qwen3ForCausalLM",),
        gguf_name="qwen3",
        hyperparameters=DECODER + RMS_NORM,
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **ATTENTION, **HEAD_NORMS, **GATED_FEED_FORWARD},
        assumed=_ASSUMED,
    ),
    Architecture(
        hf_classes=("Qwen2MoeForCausalLM",),
        gguf_name="qwen2moe",
        hyperparameters=(
            *DECODER,
            *RMS_NORM,
            *EXPERT_ROWS,
            SHARED_EXPERT_ROW,
        ),
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **ATTENTION, **QKV_BIASES, **EXPERT_FEED_FORWARD, **SHARED_EXPERT},
        stacks=NUMBERED_EXPERTS,
        splits=FUSED_EXPERTS,
        assumed={**_ASSUMED_OF_EXPERTS, "norm_topk_prob": lambda _config: False},
    ),
    Architecture(
        hf_classes=("Qwen3MoeForCausalLM",),
        gguf_name="qwen3moe",
        hyperparameters=DECODER + RMS_NORM + EXPERT_ROWS,
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **ATTENTION, **HEAD_NORMS, **EXPERT_FEED_FORWARD},
        stacks=NUMBERED_EXPERTS,
        splits=FUSED_EXPERTS,
        assumed={**_ASSUMED_OF_EXPERTS, "norm_topk_prob": lambda _config: True},
    ),
)
