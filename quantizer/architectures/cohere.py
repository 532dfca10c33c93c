"""Command R and R7B: attention and feed-forward side by side after one norm, the logits scaled."""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.metadata_rows import DECODER, LAYER_NORM, VOCABULARY, WINDOW, integer, windows_but_every
from quantizer.architectures.rope import kind_of, partly_rotated
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, decoder
from quantizer.checkpoint.config import Config

__all__ = ["COHERE"]

_N_LAYERS_WITH_HEAD_NORMS = 64


def _no_scaling(config: Config) -> Value:
    kind_of(config, ("default",))
    return "none"


_COMMAND_R = Architecture(
    hf_classes=("CohereForCausalLM",),
    gguf_name="command-r",
    hyperparameters=(
        *(row for row in DECODER if row.key != "context_length" and not row.key.startswith("rope.scaling.")),
        # the first checkpoints understate the other
        Hyperparameter("context_length", "u32", integer("model_max_length", "max_position_embeddings")),
        *LAYER_NORM,
        Hyperparameter("rope.scaling.type", "str", _no_scaling),
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
)

COHERE = (
    _COMMAND_R,
    replace(
        _COMMAND_R,
        hf_classes=("Cohere2ForCausalLM",),
        gguf_name="cohere2",
        hyperparameters=(
            *_COMMAND_R.hyperparameters,
            *VOCABULARY,
            *WINDOW,
            Hyperparameter("rope.dimension_count", "u32", partly_rotated(1.0)),
        ),
        assumed={
            "hidden_act": lambda _config: "silu",
            "tie_word_embeddings": lambda _config: True,
            "use_qk_norm": lambda _config: False,
            "rotary_pct": lambda _config: 1.0,
            "sliding_window_pattern": lambda _config: 4,
            "layer_types": windows_but_every(4),
        },
    ),
)
