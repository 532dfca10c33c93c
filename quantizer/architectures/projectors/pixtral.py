"""The projectors of Mistral 3, Pixtral 12B and LightOnOCR: a Pixtral tower, which takes pictures of any size and
rotates by row and column.

Squares of patches become one vector, but not for Pixtral 12B. Its class is LLaVA's, of which no other tower is known:
behind one of CLIP libmtmd takes the vector for the whole picture for that of a patch. For both Mistrals libmtmd puts
the embedding of a token at the end of each row of vectors, so that the file holds that row of the language model's
embeddings. Heads are rotated by neighbours in llama.cpp, by halves in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Hyperparameter, Layout, Settings, Value
from quantizer.architectures.projectors import projector
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import unpermute_keys, unpermute_queries

_EPS = 1e-5  # fixed in transformers
_LAYER: shapes.Dimensions = {
    "ln1.weight": ("n_embd",),
    "ln2.weight": ("n_embd",),
    **{name: shapes.ATTENTION[name] for name in ("attn_q.weight", "attn_k.weight", "attn_v.weight")},
    "attn_out.weight": shapes.ATTENTION["attn_output.weight"],
    **shapes.GATED_FEED_FORWARD,
}


def _n_merged(config: Config) -> int:
    return config.section("model").optional_integer("spatial_merge_size") or 2


def _outside_layers(config: Config) -> shapes.Dimensions:
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


def _outside_layers_of_pixtral(config: Config) -> shapes.Dimensions:
    has_bias = config.section("model").flag("multimodal_projector_bias") is not False
    kept = ("v.patch_embd.weight", "v.pre_ln.weight", "v.token_embd.img_break", "mm.1.weight", "mm.2.weight")
    return {
        **{name: extents for name, extents in _outside_layers(config).items() if name in kept},
        **(dict.fromkeys(("mm.1.bias", "mm.2.bias"), ("n_projected",)) if has_bias else {}),
    }


def _of_llava(config: Config) -> dict[str, Any]:
    whole = config.section("model").values
    return {
        "projector_hidden_act": whole.get("projector_hidden_act"),
        "vision_feature_layer": whole.get("vision_feature_layer", -2),
        "vision_feature_select_strategy": whole.get("vision_feature_select_strategy", "default"),
    }


def _of_the_whole(config: Config) -> dict[str, Any]:
    whole = config.section("model").values
    return {
        "projector_hidden_act": whole.get("projector_hidden_act"),
        "vision_feature_layer": whole.get("vision_feature_layer"),
        "rms_norm_eps": config.section("language").optional_number("rms_norm_eps"),
    }


def _activation(name: str) -> Hyperparameter:
    return rows.boolean(f"use_{name}", lambda config: True if config.text("hidden_act") == name else None)


def _longest_edge(config: Config) -> Value:
    """Return the longer side to which pictures are brought, by default the size of those the tower was made for."""
    return projector.processor_of(config).section("size").optional_integer("longest_edge") or config.integer(
        "image_size"
    )


_MISTRAL_3 = projector.Projector(
    kind="pixtral",
    hf_classes=("Mistral3ForConditionalGeneration",),
    modules=("vision_tower.", "multi_modal_projector."),
    hyperparameters=(
        *(projector.TOWER + projector.PICTURE),
        _activation("silu"),
        _activation("gelu"),
        projector.layer_norm_eps(_EPS),
        rows.u32("vision.spatial_merge_size", _n_merged),
    ),
    tensors=projector.TowerTensors(layer=_LAYER, model=_outside_layers),
    names=projector.TowerNames(renames={r"^model\.": ""}),
    layout=Layout(row_orders={"V_ENC_ATTN_Q": unpermute_queries, "V_ENC_ATTN_K": unpermute_keys}),
    settings=Settings(
        defaults=projector.sizes(
            hidden=1024, feed_forward=4096, layers=24, heads=16, image_size=1024, patch_size=16, hidden_act="gelu"
        ),
        assumed={
            "hidden_act": lambda config: "silu" if config.text("hidden_act") == "silu" else "gelu",
            "num_channels": 3,
            "head_dim": shapes.even_head_size,
            "rope_theta": 1e4,
            "rope_parameters": projector.plain_rotation,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            # llama.cpp has one for the tower and for what follows
            "rms_norm_eps": _EPS,
        },
    ),
    token_rows={"v.token_embd.img_break": "[IMG_BREAK]"},
    derived=_of_the_whole,
    processor_assumed=projector.PLAIN_PROCESSOR,
)

PIXTRAL = (
    _MISTRAL_3,
    replace(
        _MISTRAL_3,
        kind="lightonocr",
        hf_classes=("LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
        modules=("vision_encoder.", "vision_projection."),
        hyperparameters=(*_MISTRAL_3.hyperparameters, rows.u32("vision.preproc_image_size", _longest_edge)),
        tensors=replace(
            _MISTRAL_3.tensors, model=lambda config: shapes.without(_outside_layers(config), "v.token_embd.img_break")
        ),
        names=replace(
            _MISTRAL_3.names,
            renames={
                **_MISTRAL_3.names.renames,
                r"^vision_encoder\.": "vision_tower.",
                r"^vision_projection\.": "multi_modal_projector.",
            },
        ),
        settings=_MISTRAL_3.settings.plus(
            defaults={"image_size": 1540, "patch_size": 14, "hidden_act": "silu"},
            assumed={
                # too little to matter in the one norm of it that follows the tower
                "rms_norm_eps": lambda config: min(config.number("rms_norm_eps"), _EPS)
            },
        ),
        token_rows={},
    ),
    replace(
        _MISTRAL_3,
        hf_classes=("LlavaForConditionalGeneration",),
        hyperparameters=(
            *rows.without(_MISTRAL_3.hyperparameters, "vision.spatial_merge_size"),
            rows.u32("vision.spatial_merge_size", 1),
        ),
        tensors=replace(_MISTRAL_3.tensors, model=_outside_layers_of_pixtral),
        settings=replace(
            _MISTRAL_3.settings,
            defaults={**_MISTRAL_3.settings.defaults, "model_type": "clip_vision_model"},
            assumed={
                **{name: expected for name, expected in _MISTRAL_3.settings.assumed.items() if name != "rms_norm_eps"},
                "model_type": "pixtral",
                "vision_feature_select_strategy": "full",
            },
        ),
        derived=_of_llava,
    ),
)
