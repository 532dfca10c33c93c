"""The projector of PaddleOCR-VL: a SigLIP tower that rotates by row and column too, and takes pictures of any size.

Squares of four patches, each normalised, lie side by side in one vector.
"""

from __future__ import annotations

from collections.abc import Callable

from quantizer.architectures.architecture import Hyperparameter, Value
from quantizer.architectures.projectors.projector import (
    GELU,
    PICTURE,
    PLAIN_PROCESSOR,
    TOWER,
    TOWER_LAYER,
    TOWER_TENSORS,
    Projector,
    layer_norm_eps,
    processor_of,
)
from quantizer.architectures.shapes import Dimensions
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError

_N_JOINED = 4


def _pixels(name: str, edge: str) -> Callable[[Config], Value]:
    """Return a function that reads how many pixels a picture has at least, or at most, from either of two places."""

    def read(config: Config) -> Value:
        processor = processor_of(config)
        n_pixels = processor.optional_integer(name) or processor.section("size").optional_integer(edge)
        if not n_pixels:
            raise CheckpointError(f"preprocessor_config.json has no {name}.", "Download the whole checkpoint.")
        return n_pixels

    return read


def _outside_layers(config: Config) -> Dimensions:
    n_joined = _N_JOINED * config.integer("hidden_size")
    return {
        **TOWER_TENSORS,
        "mm.input_norm.weight": ("n_embd",),
        "mm.input_norm.bias": ("n_embd",),
        "mm.1.weight": (n_joined, n_joined),
        "mm.1.bias": (n_joined,),
        "mm.2.weight": (n_joined, "n_projected"),
        "mm.2.bias": ("n_projected",),
    }


PADDLEOCR = (
    Projector(
        kind="paddleocr",
        hf_classes=("PaddleOCRVLForConditionalGeneration",),
        modules=("visual.", "projector.", "mlp_AR."),
        hyperparameters=(
            *TOWER,
            *PICTURE,
            *GELU,
            layer_norm_eps(1e-6),
            Hyperparameter("vision.image_min_pixels", "u32", _pixels("min_pixels", "shortest_edge")),
            Hyperparameter("vision.image_max_pixels", "u32", _pixels("max_pixels", "longest_edge")),
        ),
        layer_tensors=TOWER_LAYER,
        model_tensors=_outside_layers,
        renames={
            r"^(model\.)?visual\.vision_model\.": "vision_tower.vision_model.",
            r"^(model\.projector|projector|mlp_AR)\.pre_norm\.": "mm.input_norm.",
            r"^(model\.projector|projector|mlp_AR)\.linear_": "mm.",
        },
        ignored=(".position_ids", ".packing_position_embedding.weight"),
        unused=("vision_tower.vision_model.head.",),
        defaults={
            "image_size": 384,
            "patch_size": 14,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
        },
        assumed={
            "hidden_act": lambda _config: "gelu_pytorch_tanh",
            "num_channels": lambda _config: 3,
            "spatial_merge_size": lambda _config: 2,
            "rope_parameters": lambda config: {**config.section("rope_parameters").values, "rope_theta": 1e4},
        },
        processor_assumed={**PLAIN_PROCESSOR, "merge_size": 2, "temporal_patch_size": 1},
    ),
)
