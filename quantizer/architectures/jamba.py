"""Jamba: layers of Mamba, with attention in every few of them and experts in others; positions are nowhere."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter, Stack, Value
from quantizer.architectures.rows import EXPERTS, RMS_NORM, SIZES, integer
from quantizer.architectures.shapes import (
    ATTENTION,
    DIMENSIONS,
    EXPERT_FEED_FORWARD,
    GATED_FEED_FORWARD,
    PRE_NORMS,
    decoder,
)
from quantizer.config import Config
from quantizer.transforms import negative_exponential

__all__ = ["JAMBA"]

_MAMBA: Dimensions = {
    "ssm_in.weight": ("n_embd", "2 n_mamba"),
    "ssm_conv1d.weight": ("n_conv", "n_mamba"),
    "ssm_conv1d.bias": ("n_mamba",),
    "ssm_x.weight": ("n_mamba", "n_step_and_states"),
    "ssm_dt.weight": ("n_step", "n_mamba"),
    "ssm_dt.bias": ("n_mamba",),
    "ssm_dt_norm.weight": ("n_step",),
    "ssm_b_norm.weight": ("n_state",),
    "ssm_c_norm.weight": ("n_state",),
    "ssm_a": ("n_state", "n_mamba"),
    "ssm_d": ("n_mamba",),
    "ssm_out.weight": ("n_mamba", "n_embd"),
}


def _is_every(config: Config, kind: str, i: int) -> bool:
    period, offset = config.integer(f"{kind}_layer_period"), config.integer(f"{kind}_layer_offset")
    return i % max(1, period) == offset


def _layer(config: Config, i: int) -> Dimensions:
    has_experts = _is_every(config, "expert", i) and config.integer("num_experts") > 1
    return {
        **PRE_NORMS,
        **(ATTENTION if _is_every(config, "attn", i) else _MAMBA),
        **(EXPERT_FEED_FORWARD if has_experts else GATED_FEED_FORWARD),
    }


def _kv_heads(config: Config) -> Value:
    """For each layer, none where it is Mamba's."""
    n_heads = config.integer("num_key_value_heads")
    return [n_heads if _is_every(config, "attn", i) else 0 for i in range(config.integer("num_hidden_layers"))]


JAMBA = (
    Architecture(
        hf_classes=("JambaForCausalLM",),
        gguf_name="jamba",
        hyperparameters=(
            *SIZES,
            *RMS_NORM,
            *EXPERTS,
            Hyperparameter("attention.head_count", "u32", integer("num_attention_heads")),
            Hyperparameter("attention.head_count_kv", "u32[]", _kv_heads),
            Hyperparameter("ssm.conv_kernel", "u32", integer("conv_kernel")),
            Hyperparameter("ssm.state_size", "u32", integer("state_size")),
            Hyperparameter("ssm.inner_size", "u32", DIMENSIONS["n_mamba"]),
            Hyperparameter("ssm.time_step_rank", "u32", integer("time_step_rank")),
        ),
        model_tensors=decoder,
        layer_tensors=_layer,
        value_maps={"SSM_A": negative_exponential},
        reshaped=("SSM_CONV1D",),
        # gguf's map knows the experts by the names that other models have for them
        stacks=(Stack(".feed_forward.experts.", ".mlp.experts.", DIMENSIONS["n_expert"]),),
        aliases={"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size", "mamba_dt_rank": "time_step_rank"},
        assumed={
            "hidden_act": lambda _config: "silu",
            "mamba_expand": lambda _config: 2,
            "mamba_conv_bias": lambda _config: True,
            "mamba_proj_bias": lambda _config: False,
            "sliding_window": lambda _config: None,
        },
    ),
)
