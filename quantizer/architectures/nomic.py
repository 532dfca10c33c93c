"""Nomic's BERT: rotary positions instead of a table of them, a gated feed-forward, and GPT-2's names for settings."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.bert import EMBEDDINGS, ENCODER, NORMS
from quantizer.architectures.rope import ROPE
from quantizer.architectures.shapes import FUSED_ATTENTION, GATED_FEED_FORWARD, biases
from quantizer.config import Config

__all__ = ["NOMIC"]


def _n_trained_positions(config: Config) -> Value:
    """Beyond those of training the rope would change with the length of a text, which llama.cpp's does not."""
    return min(config.integer("max_position_embeddings"), config.integer("max_trained_positions"))


NOMIC = (
    Architecture(
        hf_classes=("NomicBertModel",),
        gguf_name="nomic-bert",
        hyperparameters=(
            *(row for row in ENCODER if row.key != "context_length"),
            *ROPE,
            Hyperparameter("context_length", "u32", _n_trained_positions),
        ),
        model_tensors=lambda _config: EMBEDDINGS,
        layer_tensors={**FUSED_ATTENTION, **GATED_FEED_FORWARD, **NORMS, **biases(NORMS)},
        aliases={
            "n_embd": "hidden_size",
            "n_inner": "intermediate_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        defaults={
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "max_trained_positions": 2048,
            "rope_theta": 1000.0,
        },
        assumed={
            "activation_function": lambda _config: "swiglu",
            "hidden_act": lambda _config: "silu",
            "rotary_emb_fraction": lambda _config: 1.0,
            "moe_every_n_layers": lambda _config: 0,
            **dict.fromkeys(
                (
                    *("causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"),
                    *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"),
                ),
                lambda _config: False,
            ),
        },
    ),
)
