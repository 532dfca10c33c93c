"""Command R: attention and feed-forward side by side after one norm, the logits scaled."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.rows import DECODER, LAYER_NORM
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, decoder

__all__ = ["COHERE"]

_N_LAYERS_WITH_HEAD_NORMS = 64

COHERE = (
    Architecture(
        hf_classes=("CohereForCausalLM",),
        gguf_name="command-r",
        hyperparameters=(
            *(row for row in DECODER if not row.key.startswith("rope.scaling.")),
            *LAYER_NORM,
            Hyperparameter("rope.scaling.type", "str", lambda _config: "none"),
            Hyperparameter("logit_scale", "f32", lambda config: config.number("logit_scale")),
        ),
        model_tensors=decoder,
        layer_tensors={"attn_norm.weight": ("n_embd",), **ATTENTION, **GATED_FEED_FORWARD},
        defaults={"tie_word_embeddings": True, "logit_scale": 0.0625},
        assumed={
            "hidden_act": lambda _config: "silu",
            "tie_word_embeddings": lambda _config: True,
            "use_qk_norm": lambda config: config.integer("num_hidden_layers") >= _N_LAYERS_WITH_HEAD_NORMS,
        },
    ),
)
