"""StableLM 2: layer norms with biases, a quarter of each head rotated; the 12B normalises its heads one by one."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter, Stack
from quantizer.architectures.rope import partly_rotated
from quantizer.architectures.rows import DECODER, LAYER_NORM
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, decoder_with_bias

__all__ = ["STABLELM"]

STABLELM = (
    Architecture(
        hf_classes=("StableLmForCausalLM",),
        gguf_name="stablelm",
        hyperparameters=(
            *DECODER,
            *LAYER_NORM,
            Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.25)),
            Hyperparameter(
                "use_parallel_residual", "bool", lambda config: config.flag("use_parallel_residual") or False
            ),
        ),
        model_tensors=decoder_with_bias,
        # with attention and feed-forward side by side there is no norm between them
        layer_tensors={
            "attn_norm.weight": ("n_embd",),
            "attn_norm.bias": ("n_embd",),
            **ATTENTION,
            **GATED_FEED_FORWARD,
        },
        stacks=(
            Stack("q_layernorm.norms.", "q_layernorm.", lambda config: config.integer("num_attention_heads")),
            Stack("k_layernorm.norms.", "k_layernorm.", lambda config: config.integer("num_key_value_heads")),
        ),
        assumed={"hidden_act": lambda _config: "silu"},
    ),
)
