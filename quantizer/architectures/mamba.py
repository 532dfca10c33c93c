"""Mamba: no attention, a state that each token moves on."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter
from quantizer.architectures.rows import integer
from quantizer.architectures.shapes import decoder
from quantizer.transforms import negative_exponential

__all__ = ["MAMBA"]

_UNBOUNDED_CONTEXT = 1 << 20  # a state has no length; this is what llama.cpp's own files say

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

MAMBA = (
    Architecture(
        hf_classes=("MambaForCausalLM",),
        gguf_name="mamba",
        hyperparameters=(
            Hyperparameter("block_count", "u32", integer("num_hidden_layers")),
            Hyperparameter("context_length", "u32", lambda _config: _UNBOUNDED_CONTEXT),
            Hyperparameter("embedding_length", "u32", integer("hidden_size")),
            Hyperparameter("feed_forward_length", "u32", lambda _config: 0),
            Hyperparameter("attention.head_count", "u32", lambda _config: 0),
            Hyperparameter("ssm.conv_kernel", "u32", integer("conv_kernel")),
            Hyperparameter("ssm.inner_size", "u32", integer("intermediate_size")),
            Hyperparameter("ssm.state_size", "u32", integer("state_size")),
            Hyperparameter("ssm.time_step_rank", "u32", integer("time_step_rank")),
            Hyperparameter("ssm.dt_b_c_rms", "bool", lambda _config: False),
            Hyperparameter(
                "attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("layer_norm_epsilon")
            ),
        ),
        model_tensors=decoder,
        layer_tensors=_LAYER,
        value_maps={"SSM_A": negative_exponential},
        squeezed=("SSM_CONV1D",),
        defaults={"tie_word_embeddings": True},
        assumed={
            "hidden_act": lambda _config: "silu",
            "use_bias": lambda _config: False,
            "intermediate_size": lambda config: 2 * config.integer("hidden_size"),
        },
    ),
)
