"""Phi 3 and 4: q, k, v and gate, up stay the fused matrices that they are; longrope scales their positions."""

from __future__ import annotations

import math

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.metadata_rows import DECODER, RMS_NORM
from quantizer.architectures.rope import kind_of, long_factors, partly_rotated, rope_of
from quantizer.architectures.shapes import FUSED_ATTENTION, FUSED_FEED_FORWARD, PRE_NORMS, decoder
from quantizer.checkpoint.config import Config

__all__ = ["PHI"]

_ROTATED = partly_rotated(1.0)


def _original_context(config: Config) -> int:
    kind_of(config, ("default", "longrope", "su"))
    original = rope_of(config).optional_integer("original_max_position_embeddings")
    return original or config.integer("original_max_position_embeddings", "max_position_embeddings")


def _attention_factor(config: Config) -> Value:
    """Return longrope's factor of attention. Source: LongRoPE, the scaling published with Phi 3 (128k)."""
    if rope_of(config).values.get("long_factor") is None:
        return None
    original = max(2, _original_context(config))
    scale = config.integer("max_position_embeddings") / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


PHI = (
    Architecture(
        hf_classes=("Phi3ForCausalLM",),
        gguf_name="phi3",
        hyperparameters=(
            *(row for row in DECODER if not row.key.startswith("rope.scaling.")),
            *RMS_NORM,
            Hyperparameter("rope.dimension_count", "u32", _ROTATED),
            Hyperparameter("rope.scaling.original_context_length", "u32", _original_context),
            Hyperparameter("rope.scaling.attn_factor", "f32", _attention_factor),
            Hyperparameter("attention.sliding_window", "u32", lambda c: c.optional_integer("sliding_window") or 0),
        ),
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **FUSED_ATTENTION, **FUSED_FEED_FORWARD},
        generate=long_factors(_ROTATED),
        assumed={"hidden_act": lambda _config: "silu"},
    ),
)
