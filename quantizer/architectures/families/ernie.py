"""ERNIE 4.5, dense and with experts: Llama's layers, rotated by neighbours as they are stored.

Experts are chosen by softmax with a correction, after dense layers; shared ones are as wide as so many others.
"""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.families.deepseek import SHARED_EXPERTS
from quantizer.architectures.metadata_rows import DECODER, EXPERTS, RMS_NORM, integer
from quantizer.architectures.shapes import (
    ATTENTION,
    DIMENSIONS,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    GATED_FEED_FORWARD,
    NUMBERED_EXPERTS,
    PRE_NORMS,
    Dimensions,
)
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import whole_tensor

_DEFAULTS = {"tie_word_embeddings": True, "rope_theta": 5e5}
_ASSUMED = {"hidden_act": lambda _config: "silu", "use_bias": lambda _config: False}
_EXPERTS: Dimensions = {**EXPERT_FEED_FORWARD, "exp_probs_b.bias": ("n_expert",)}


def _layer(config: Config, i: int) -> Dimensions:
    if i < config.integer("moe_layer_start_index"):
        return {**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD}
    return {**PRE_NORMS, **ATTENTION, **_EXPERTS, **(SHARED_EXPERTS if config.integer("n_shared_experts") else {})}


def _last_layer(config: Config) -> int:
    """Return the last layer's number, which -1 stands for as well."""
    return -1 if config.values.get("moe_layer_end_index") == -1 else config.integer("num_hidden_layers") - 1


ERNIE = (
    Architecture(
        hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        gguf_name="ernie4_5",
        hyperparameters=DECODER + RMS_NORM,
        layer_tensors={**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
        defaults=_DEFAULTS,
        assumed=_ASSUMED,
    ),
    Architecture(
        hf_classes=("Ernie4_5_MoeForCausalLM",),
        gguf_name="ernie4_5-moe",
        hyperparameters=(
            *DECODER,
            *RMS_NORM,
            *EXPERTS,
            Hyperparameter("interleave_moe_layer_step", "u32", lambda _config: 1),
            Hyperparameter("leading_dense_block_count", "u32", integer("moe_layer_start_index")),
            Hyperparameter("expert_feed_forward_length", "u32", integer("moe_intermediate_size")),
            Hyperparameter("expert_shared_count", "u32", integer("n_shared_experts")),
            Hyperparameter("expert_shared_feed_forward_length", "u32", DIMENSIONS["n_ff_shared_experts"]),
        ),
        layer_tensors=_layer,
        reshaped=("FFN_EXP_PROBS_B",),
        splits={
            # the same correction, under two names
            ".gate.moe_statics.e_score_correction_bias": {".moe_statics.e_score_correction.bias": whole_tensor},
            ".e_score_correction_bias": {".e_score_correction.bias": whole_tensor},
            **FUSED_EXPERTS,
        },
        stacks=NUMBERED_EXPERTS,
        # prediction of several tokens
        unused=tuple(f"model.mtp_{part}." for part in ("block", "emb_norm", "hidden_norm", "linear_proj")),
        aliases={
            "moe_num_experts": "num_experts",
            "moe_k": "num_experts_per_tok",
            "moe_num_shared_experts": "n_shared_experts",
        },
        defaults={**_DEFAULTS, "moe_layer_start_index": 1, "n_shared_experts": 2},
        assumed={**_ASSUMED, "moe_layer_interval": lambda _config: 1, "moe_layer_end_index": _last_layer},
    ),
)
