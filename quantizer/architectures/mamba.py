"""Mamba and Mamba-2: no attention, a state that each token moves on."""

from __future__ import annotations

import math

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter
from quantizer.architectures.rows import integer
from quantizer.architectures.shapes import DIMENSIONS, decoder
from quantizer.composed import whole
from quantizer.config import Config
from quantizer.transforms import negative_exponential

__all__ = ["MAMBA"]

_UNBOUNDED_CONTEXT = 1 << 20  # a state has no length; this is what llama.cpp's own files say

_ROWS = (
    Hyperparameter("block_count", "u32", integer("num_hidden_layers")),
    Hyperparameter("context_length", "u32", lambda _config: _UNBOUNDED_CONTEXT),
    Hyperparameter("embedding_length", "u32", integer("hidden_size")),
    Hyperparameter("feed_forward_length", "u32", lambda _config: 0),
    Hyperparameter("attention.head_count", "u32", lambda _config: 0),
    Hyperparameter("ssm.conv_kernel", "u32", integer("conv_kernel")),
    Hyperparameter("ssm.state_size", "u32", integer("state_size")),
    Hyperparameter("attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("layer_norm_epsilon")),
)
_LAYER: Dimensions = {
    "attn_norm.weight": ("n_embd",),
    "ssm_in.weight": ("n_embd", "2 n_ff"),
    "ssm_conv1d.weight": ("n_conv", "n_ff"),
    "ssm_conv1d.bias": ("n_ff",),
    "ssm_x.weight": ("n_ff", "n_step_and_states"),
    "ssm_dt.weight": ("n_step", "n_ff"),
    "ssm_dt.bias": ("n_ff",),
    "ssm_a": ("n_state", "n_ff"),
    "ssm_d": ("n_ff",),
    "ssm_out.weight": ("n_ff", "n_embd"),
}
_LAYER_2: Dimensions = {
    "attn_norm.weight": ("n_embd",),
    "ssm_in.weight": ("n_embd", "n_ssm_projection"),
    "ssm_conv1d.weight": ("n_conv", "n_ssm_channels"),
    "ssm_conv1d.bias": ("n_ssm_channels",),
    "ssm_dt.bias": ("n_ssm_heads",),
    "ssm_a": (1, "n_ssm_heads"),
    "ssm_d": (1, "n_ssm_heads"),
    "ssm_norm.weight": ("n_ssm_group", "n_ssm_groups"),
    "ssm_out.weight": ("n_ssm_inner", "n_embd"),
}


def _no_limit(config: Config) -> object:
    """The bounds of time steps as they are written, if they bound nothing."""
    bounds = config.values.get("time_step_limit")
    is_open = isinstance(bounds, list) and bounds in ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
    return bounds if is_open else [0.0, math.inf]


MAMBA = (
    Architecture(
        hf_classes=("MambaForCausalLM",),
        gguf_name="mamba",
        hyperparameters=(
            *_ROWS,
            Hyperparameter("ssm.inner_size", "u32", integer("intermediate_size")),
            Hyperparameter("ssm.time_step_rank", "u32", integer("time_step_rank")),
            Hyperparameter("ssm.dt_b_c_rms", "bool", lambda _config: False),
        ),
        model_tensors=decoder,
        layer_tensors=_LAYER,
        value_maps={"SSM_A": negative_exponential},
        reshaped=("SSM_CONV1D",),
        defaults={"tie_word_embeddings": True},
        assumed={
            "hidden_act": lambda _config: "silu",
            "use_bias": lambda _config: False,
            "intermediate_size": lambda config: 2 * config.integer("hidden_size"),
        },
    ),
    Architecture(
        hf_classes=("Mamba2ForCausalLM",),
        gguf_name="mamba2",
        hyperparameters=(
            *_ROWS,
            Hyperparameter("ssm.inner_size", "u32", DIMENSIONS["n_ssm_inner"]),
            Hyperparameter("ssm.time_step_rank", "u32", integer("num_heads")),
            Hyperparameter("ssm.group_count", "u32", integer("n_groups")),
        ),
        model_tensors=decoder,
        layer_tensors=_LAYER_2,
        value_maps={"SSM_A": negative_exponential},
        reshaped=("SSM_CONV1D", "SSM_A", "SSM_D", "SSM_NORM"),
        splits={".dt_bias": {".dt_proj.bias": whole}},
        assumed={
            "hidden_act": lambda _config: "silu",
            "use_bias": lambda _config: False,
            "use_conv_bias": lambda _config: True,
            "time_step_limit": _no_limit,
        },
    ),
)
