"""GLM 4: four norms a layer, gate and up in one matrix, half of each head rotated."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.rope import partly_rotated
from quantizer.architectures.rows import DECODER, RMS_NORM
from quantizer.architectures.shapes import ATTENTION, FUSED_FEED_FORWARD, POST_NORMS, PRE_NORMS, decoder

__all__ = ["GLM"]

GLM = (
    Architecture(
        hf_classes=("Glm4ForCausalLM",),
        gguf_name="glm4",
        hyperparameters=(*DECODER, *RMS_NORM, Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.5))),
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **POST_NORMS, **ATTENTION, **FUSED_FEED_FORWARD},
        assumed={"hidden_act": lambda _config: "silu"},
    ),
)
