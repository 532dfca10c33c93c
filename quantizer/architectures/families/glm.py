"""GLM 4 before and after GLM 4 0414, whose four norms are in `dense`; Solar Open.

GLM 4 of 2024: neighbours rotated in half of each head, gate and up in one matrix. GLM 4.5 and 4.6: experts chosen by
sigmoids with a correction, one of them shared, after dense layers; halves rotated. Solar Open: the same with experts in
every layer and whole heads rotated. GLM 4.5 and 4.6 have a layer that predicts one token further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.families.deepseek import EXPERT_CHOICE, SHARED_EXPERTS
from quantizer.architectures.metadata_rows import DECODER, EXPERTS, PREDICTION_ROW, RMS_NORM, partly_rotated
from quantizer.architectures.shapes import (
    ATTENTION,
    CHOICE_CORRECTION,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    FUSED_FEED_FORWARD,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    NUMBERED_EXPERTS,
    PRE_NORMS,
    Dimensions,
    attention_biases,
)
from quantizer.checkpoint.config import Config

_NORMS: Dimensions = {"attn_norm.weight": ("n_embd",), "post_attention_norm.weight": ("n_embd",)}
_EXPERTS: Dimensions = {"exp_probs_b.bias": ("n_expert",), **EXPERT_FEED_FORWARD, **SHARED_EXPERTS}


def _layer(config: Config, i: int) -> Dimensions:
    is_dense = i < config.integer("first_k_dense_replace")
    return {
        **_NORMS,
        **ATTENTION,
        **attention_biases(config, by_default=False),
        **(HEAD_NORMS if config.flag("use_qk_norm") else {}),
        **(GATED_FEED_FORWARD if is_dense else _EXPERTS),
    }


def _head_size_of_equal_shares(config: Config) -> int:
    return config.integer("hidden_size") // max(1, config.integer("num_attention_heads"))


_SILU: dict[str, Callable[[Config], object]] = {"hidden_act": lambda _config: "silu"}
_GLM = Architecture(
    hf_classes=("GlmForCausalLM",),
    gguf_name="chatglm",
    hyperparameters=(*DECODER, *RMS_NORM, Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.5))),
    layer_tensors=lambda config, _i: {
        **PRE_NORMS,
        **ATTENTION,
        **attention_biases(config, by_default=True),
        **FUSED_FEED_FORWARD,
    },
    assumed={**_SILU, "head_dim": _head_size_of_equal_shares},
)

_GLM_4_5 = Architecture(
    hf_classes=("Glm4MoeForCausalLM",),
    gguf_name="glm4moe",
    hyperparameters=(
        *DECODER,
        *RMS_NORM,
        *EXPERTS,
        *EXPERT_CHOICE,
        Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.5)),
        *PREDICTION_ROW,
    ),
    layer_tensors=_layer,
    splits={**CHOICE_CORRECTION, **FUSED_EXPERTS},
    stacks=NUMBERED_EXPERTS,
    leaves_later_layers=True,
    keeps_prediction_layer=True,
    defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1, "norm_topk_prob": True},
    assumed={**_SILU, "scoring_func": lambda _config: "sigmoid"},
)

GLM = (
    _GLM,
    _GLM_4_5,
    replace(
        _GLM_4_5,
        hf_classes=("SolarOpenForCausalLM",),
        hyperparameters=(
            *(row for row in DECODER if row.key != "feed_forward_length"),
            *RMS_NORM,
            *EXPERTS,
            *EXPERT_CHOICE,
            Hyperparameter("rope.dimension_count", "u32", partly_rotated(1.0)),
        ),
        leaves_later_layers=False,
        keeps_prediction_layer=False,
        defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 0, "norm_topk_prob": True, "rope_theta": 1e6},
        assumed={
            **_GLM_4_5.assumed,
            "first_k_dense_replace": lambda _config: 0,
            "use_qk_norm": lambda _config: False,
        },
    ),
)
