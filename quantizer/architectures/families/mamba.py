"""Mamba and Mamba-2, which have a state instead of attention; Jamba, with attention in every few layers and experts in
others, and without positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.metadata_rows import EXPERTS, RMS_NORM, SIZES, integer
from quantizer.architectures.shapes import (
    ATTENTION,
    DIMENSIONS,
    EXPERT_FEED_FORWARD,
    GATED_FEED_FORWARD,
    PRE_NORMS,
    Dimensions,
    Stack,
    resolve_shapes,
)
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import negative_exponential, whole_tensor

_UNBOUNDED_CONTEXT = 1 << 20  # a state has no length; llama.cpp's own files have this value

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
_MIXER_2: Dimensions = {
    "ssm_in.weight": ("n_embd", "n_ssm_projection"),
    "ssm_conv1d.weight": ("n_conv", "n_ssm_channels"),
    "ssm_conv1d.bias": ("n_ssm_channels",),
    "ssm_dt.bias": ("n_ssm_heads",),
    "ssm_a": (1, "n_ssm_heads"),
    "ssm_d": (1, "n_ssm_heads"),
    "ssm_norm.weight": ("n_ssm_group", "n_ssm_groups"),
    "ssm_out.weight": ("n_ssm_inner", "n_embd"),
}


def no_limit(config: Config) -> object:
    """Return the bounds of time steps as they are written, if they bound nothing."""
    bounds = config.values.get("time_step_limit")
    is_open = isinstance(bounds, list) and bounds in ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
    return bounds if is_open else [0.0, math.inf]


def mamba_2_rows(settings: Callable[[Config], Config]) -> tuple[Hyperparameter, ...]:
    """Return the rows of Mamba-2's sizes; `settings` gives a hybrid's config Mamba-2's own names."""
    sizes: dict[str, Callable[[Config], Value]] = {
        "conv_kernel": integer("conv_kernel"),
        "state_size": integer("state_size"),
        "inner_size": DIMENSIONS["n_ssm_inner"],
        "time_step_rank": integer("num_heads"),
        "group_count": integer("n_groups"),
    }
    return tuple(
        Hyperparameter(f"ssm.{name}", "u32", lambda config, read=read: read(settings(config)))  # type: ignore[misc]
        for name, read in sizes.items()
    )


def mamba_2_mixer(settings: Config) -> Dimensions:
    """Return the tensors of Mamba-2 in a layer, without its norm."""
    return resolve_shapes(_MIXER_2, settings)


# how Mamba-2's tensors become llama.cpp's, as fields of an entry
MAMBA_2_TRANSFORMS: Mapping[str, Any] = {
    "value_maps": {"SSM_A": negative_exponential},
    "reshaped": ("SSM_CONV1D", "SSM_A", "SSM_D", "SSM_NORM"),
    "splits": {".dt_bias": {".dt_proj.bias": whole_tensor}},
}

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
            *(row for row in _ROWS if not row.key.startswith("ssm.")),
            *mamba_2_rows(lambda config: config),
        ),
        layer_tensors={"attn_norm.weight": ("n_embd",), **_MIXER_2},
        **MAMBA_2_TRANSFORMS,
        assumed={
            "hidden_act": lambda _config: "silu",
            "use_bias": lambda _config: False,
            "use_conv_bias": lambda _config: True,
            "time_step_limit": no_limit,
        },
    ),
)


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
    """Return the heads of each layer, none for Mamba's."""
    n_heads = config.integer("num_key_value_heads")
    return [n_heads if _is_every(config, "attn", i) else 0 for i in range(config.integer("num_hidden_layers"))]


JAMBA = Architecture(
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
    layer_tensors=_layer,
    value_maps={"SSM_A": negative_exponential},
    reshaped=("SSM_CONV1D",),
    # gguf's map has the experts under the names of other models
    stacks=(Stack(".feed_forward.experts.", ".mlp.experts.", DIMENSIONS["n_expert"]),),
    aliases={"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size", "mamba_dt_rank": "time_step_rank"},
    assumed={
        "hidden_act": lambda _config: "silu",
        "mamba_expand": lambda _config: 2,
        "mamba_conv_bias": lambda _config: True,
        "mamba_proj_bias": lambda _config: False,
        "sliding_window": lambda _config: None,
    },
)
