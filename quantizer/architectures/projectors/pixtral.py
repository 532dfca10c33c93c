"""The projector of Mistral 3: a Pixtral tower, which takes pictures of any size and rotates by row and column.

Squares of patches become one vector. libmtmd puts the embedding of a token at the end of each row of vectors, so that
the file holds that row of the language model's embeddings. Heads are rotated by neighbours in llama.cpp, by halves in
transformers.
"""

from __future__ import annotations

from typing import Any

from quantizer.architectures.architecture import Hyperparameter, Value
from quantizer.architectures.projectors.projector import (
    PICTURE,
    PLAIN_PROCESSOR,
    TOWER,
    Projector,
    layer_norm_eps,
    plain_rotation,
)
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, Dimensions
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import unpermute_keys, unpermute_queries

__all__ = ["PIXTRAL"]

_EPS = 1e-5  # fixed in transformers
_LAYER: Dimensions = {
    "ln1.weight": ("n_embd",),
    "ln2.weight": ("n_embd",),
    **{name: ATTENTION[name] for name in ("attn_q.weight", "attn_k.weight", "attn_v.weight")},
    "attn_out.weight": ATTENTION["attn_output.weight"],
    **GATED_FEED_FORWARD,
}


def _n_merged(config: Config) -> int:
    return config.section("model").optional_integer("spatial_merge_size") or 2


def _outside_layers(config: Config) -> Dimensions:
    n_embd = config.integer("hidden_size")
    has_bias = config.section("model").flag("multimodal_projector_bias") is True
    return {
        "v.patch_embd.weight": ("n_patch", "n_patch", 3, "n_embd"),
        "v.pre_ln.weight": ("n_embd",),
        "v.token_embd.img_break": ("n_projected",),
        "mm.input_norm.weight": ("n_embd",),
        "mm.patch_merger.weight": (n_embd * _n_merged(config) ** 2, "n_embd"),
        "mm.1.weight": ("n_embd", "n_projected"),
        "mm.2.weight": ("n_projected", "n_projected"),
        **(dict.fromkeys(("mm.1.bias", "mm.2.bias"), ("n_projected",)) if has_bias else {}),
    }


def _of_the_whole(config: Config) -> dict[str, Any]:
    """Return what the config of the whole says of what follows the tower."""
    whole = config.section("model").values
    return {
        "projector_hidden_act": whole.get("projector_hidden_act"),
        "vision_feature_layer": whole.get("vision_feature_layer"),
        "rms_norm_eps": config.section("language").optional_number("rms_norm_eps"),
    }


def _activation(name: str) -> Hyperparameter:
    def read(config: Config) -> Value:
        return True if config.text("hidden_act") == name else None

    return Hyperparameter(f"use_{name}", "bool", read)


PIXTRAL = (
    Projector(
        kind="pixtral",
        hf_classes=("Mistral3ForConditionalGeneration",),
        modules=("vision_tower.", "multi_modal_projector."),
        hyperparameters=(
            *TOWER,
            *PICTURE,
            _activation("silu"),
            _activation("gelu"),
            layer_norm_eps(_EPS),
            Hyperparameter("vision.spatial_merge_size", "u32", _n_merged),
        ),
        layer_tensors=_LAYER,
        model_tensors=_outside_layers,
        row_orders={"V_ENC_ATTN_Q": unpermute_queries, "V_ENC_ATTN_K": unpermute_keys},
        renames={r"^model\.": ""},
        token_rows={"v.token_embd.img_break": "[IMG_BREAK]"},
        defaults={
            "image_size": 1024,
            "patch_size": 16,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "hidden_act": "gelu",
        },
        derived=_of_the_whole,
        assumed={
            "hidden_act": lambda config: "silu" if config.text("hidden_act") == "silu" else "gelu",
            "num_channels": lambda _config: 3,
            "head_dim": lambda config: config.integer("hidden_size") // max(1, config.integer("num_attention_heads")),
            "rope_theta": lambda _config: 1e4,
            "rope_parameters": plain_rotation,
            "projector_hidden_act": lambda _config: "gelu",
            "vision_feature_layer": lambda _config: -1,
            # llama.cpp has one for the tower and for what follows
            "rms_norm_eps": lambda _config: _EPS,
        },
        processor_assumed=PLAIN_PROCESSOR,
    ),
)
