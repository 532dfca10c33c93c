"""Projectors behind a SigLIP tower: those of Gemma 3, of Idefics 3 and SmolVLM, of LFM 2-VL, and of PaddleOCR-VL.

Gemma 3 averages squares of patches, and its projection is stored with inputs as rows, which llama.cpp expects.
Idefics 3 and LFM 2-VL lay squares of patches side by side; the second takes pictures of any size, and cuts patches
before the tower, so that its kernel is stored as a matrix. PaddleOCR-VL rotates by row and column too; squares of four
patches, each normalised, lie side by side. The towers are named in several ways, by the version of transformers that
saved them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Layout, Settings, Value
from quantizer.architectures.projectors import projector
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import plus_one

_TOWER_NAMES = {r"^(model\.)?vision_(tower|model)\.(vision_model\.)?": "vision_tower.vision_model."}
_ACTIVATION = {"hidden_act": "gelu_pytorch_tanh", "num_channels": 3}


def _pooled(config: Config) -> Value:
    """Return the patches on each side of a square that becomes one vector. Raises CheckpointError unless all fit."""
    n_patches = shapes.n_patches_per_side(config)
    n_vectors = math.isqrt(config.section("model").optional_integer("mm_tokens_per_image") or 256)
    if n_vectors == 0 or n_patches % n_vectors:
        raise CheckpointError(
            f"{n_patches} patches in a row cannot be divided into {n_vectors} vectors.", "Check mm_tokens_per_image."
        )
    return n_patches // n_vectors


def _joined(config: Config) -> int:
    return config.section("model").optional_integer("scale_factor") or 2


def _after_tower(config: Config) -> shapes.Dimensions:
    """Return the tensors of LFM 2-VL's two matrices, and of the norm before them, where there is one."""
    whole = config.section("model")
    n_joined = config.integer("hidden_size") * _lfm_joined(config) ** 2
    n_hidden = whole.optional_integer("projector_hidden_size") or 2560
    norm: shapes.Dimensions = {"mm.input_norm.weight": (n_joined,), "mm.input_norm.bias": (n_joined,)}
    return {
        **(norm if whole.flag("projector_use_layernorm") is not False else {}),
        "mm.1.weight": (n_joined, n_hidden),
        "mm.1.bias": (n_hidden,),
        "mm.2.weight": (n_hidden, "n_projected"),
        "mm.2.bias": ("n_projected",),
    }


def _lfm_joined(config: Config) -> int:
    return config.section("model").optional_integer("downsample_factor") or 2


def _of_the_whole(config: Config) -> dict[str, Any]:
    """Return what the config of the whole says of the tower, and the size of the picture that its positions are for."""
    whole = config.section("model").values
    n_patches = config.integer("num_patches")
    side = math.isqrt(n_patches)
    if side * side != n_patches:
        raise CheckpointError(
            f"config.json has num_patches = {n_patches}, which is not a square number.", "Check config.json."
        )
    names = ("projector_hidden_act", "projector_bias", "vision_feature_layer")
    return {name: whole.get(name) for name in names} | {"image_size": side * config.integer("patch_size")}


def _longest_edge(config: Config) -> Value:
    """Return the longer side to which pictures are brought before they are cut into pieces as large as the tower sees.

    Raises CheckpointError where pieces are larger or smaller.
    """
    seen, processor = config.integer("image_size"), projector.processor_of(config)
    piece = processor.section("max_image_size").optional_integer("longest_edge") or seen
    if piece != seen:
        raise CheckpointError(
            f"preprocessor_config.json cuts pieces of {piece} pixels, but the vision tower takes {seen}.",
            "Choose another model.",
        )
    return processor.section("size").optional_integer("longest_edge") or seen


SIGLIP = (
    projector.Projector(
        kind="gemma3",
        hf_classes=("Gemma3ForConditionalGeneration",),
        modules=("vision_tower.", "multi_modal_projector."),
        hyperparameters=(
            *(projector.TOWER + projector.PICTURE + projector.GELU),
            projector.layer_norm_eps(1e-6),
            rows.u32("vision.projector.scale_factor", _pooled),
        ),
        tensors=projector.TowerTensors(
            layer=projector.TOWER_LAYER,
            model=lambda _config: {
                **projector.TOWER_TENSORS,
                "mm.input_projection.weight": ("n_projected", "n_embd"),
                "mm.soft_emb_norm.weight": ("n_embd",),
            },
        ),
        names=projector.TowerNames(
            renames={
                **_TOWER_NAMES,
                r"^(model\.)?multi_modal_projector\.mm_input_projection_weight$": "mm.input_projection.weight",
                r"^(model\.)?multi_modal_projector\.mm_soft_emb_norm\.": "mm.soft_emb_norm.",
            },
            ignored=(".position_ids",),
            unused=("vision_tower.vision_model.head.",),
        ),
        layout=Layout(value_maps={"V_MM_SOFT_EMB_NORM": plus_one}),
        settings=Settings(
            defaults=projector.sizes(hidden=768, feed_forward=3072, layers=12, heads=12, image_size=224, patch_size=16),
            assumed=_ACTIVATION,
        ),
        # libmtmd turns it as it computes, which it cannot with blocks
        plain=("mm.input_projection.weight",),
        processor_assumed=projector.PLAIN_PROCESSOR,
    ),
    projector.Projector(
        kind="idefics3",
        hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        modules=("vision_model.", "connector."),
        hyperparameters=(
            *(projector.TOWER + projector.PICTURE + projector.GELU),
            projector.layer_norm_eps(1e-6),
            rows.u32("vision.projector.scale_factor", _joined),
            rows.u32("vision.preproc_image_size", _longest_edge),
        ),
        tensors=projector.TowerTensors(
            layer=projector.TOWER_LAYER,
            model=lambda config: {
                **projector.TOWER_TENSORS,
                "mm.model.fc.weight": (config.integer("hidden_size") * _joined(config) ** 2, "n_projected"),
            },
        ),
        names=projector.TowerNames(
            renames={**_TOWER_NAMES, r"^(model\.)?connector\.modality_projection\.proj\.": "mm.model.fc."},
            ignored=(".position_ids",),
        ),
        settings=Settings(
            defaults=projector.sizes(
                hidden=1152, feed_forward=3072, layers=12, heads=16, image_size=224, patch_size=32
            ),
            assumed=_ACTIVATION,
        ),
        processor_assumed=projector.PLAIN_PROCESSOR,
    ),
    projector.Projector(
        kind="lfm2",
        hf_classes=("Lfm2VlForConditionalGeneration",),
        modules=("vision_tower.", "multi_modal_projector."),
        hyperparameters=(
            *(projector.TOWER + projector.PICTURE + projector.GELU),
            projector.layer_norm_eps(1e-6),
            rows.u32("vision.projector.scale_factor", _lfm_joined),
        ),
        tensors=projector.TowerTensors(
            layer=projector.TOWER_LAYER, model=lambda config: {**projector.TOWER_TENSORS, **_after_tower(config)}
        ),
        names=projector.TowerNames(
            renames={**_TOWER_NAMES, r"^model\.": ""}, unused=("vision_tower.vision_model.head.",)
        ),
        layout=Layout(splits={".patch_embedding.weight": {".patch_embedding.weight": projector.colours_apart}}),
        settings=Settings(
            defaults=projector.sizes(
                hidden=768, feed_forward=3072, layers=12, heads=12, patch_size=16, num_patches=256
            ),
            assumed={**_ACTIVATION, "projector_hidden_act": "gelu", "projector_bias": True, "vision_feature_layer": -1},
        ),
        derived=_of_the_whole,
        processor_assumed=projector.PLAIN_PROCESSOR,
    ),
)


_PADDLEOCR_N_JOINED = 4


def _pixels(name: str, edge: str) -> Callable[[Config], Value]:
    """Return a function that reads how many pixels a picture has at least, or at most, from either of two places."""

    def read(config: Config) -> Value:
        processor = projector.processor_of(config)
        n_pixels = processor.optional_integer(name) or processor.section("size").optional_integer(edge)
        if not n_pixels:
            raise CheckpointError(f"preprocessor_config.json has no {name}.", "Download the whole checkpoint.")
        return n_pixels

    return read


def _paddleocr_outside_layers(config: Config) -> shapes.Dimensions:
    n_joined = _PADDLEOCR_N_JOINED * config.integer("hidden_size")
    return {
        **projector.TOWER_TENSORS,
        "mm.input_norm.weight": ("n_embd",),
        "mm.input_norm.bias": ("n_embd",),
        "mm.1.weight": (n_joined, n_joined),
        "mm.1.bias": (n_joined,),
        "mm.2.weight": (n_joined, "n_projected"),
        "mm.2.bias": ("n_projected",),
    }


PADDLEOCR = (
    projector.Projector(
        kind="paddleocr",
        hf_classes=("PaddleOCRVLForConditionalGeneration",),
        modules=("visual.", "projector.", "mlp_AR."),
        hyperparameters=(
            *(projector.TOWER + projector.PICTURE + projector.GELU),
            projector.layer_norm_eps(1e-6),
            rows.u32("vision.image_min_pixels", _pixels("min_pixels", "shortest_edge")),
            rows.u32("vision.image_max_pixels", _pixels("max_pixels", "longest_edge")),
        ),
        tensors=projector.TowerTensors(layer=projector.TOWER_LAYER, model=_paddleocr_outside_layers),
        names=projector.TowerNames(
            renames={
                r"^(model\.)?visual\.vision_model\.": "vision_tower.vision_model.",
                r"^(model\.projector|projector|mlp_AR)\.pre_norm\.": "mm.input_norm.",
                r"^(model\.projector|projector|mlp_AR)\.linear_": "mm.",
            },
            ignored=(".position_ids", ".packing_position_embedding.weight"),
            unused=("vision_tower.vision_model.head.",),
        ),
        settings=Settings(
            defaults=projector.sizes(
                hidden=1152, feed_forward=4304, layers=27, heads=16, image_size=384, patch_size=14
            ),
            assumed={
                "hidden_act": "gelu_pytorch_tanh",
                "num_channels": 3,
                "spatial_merge_size": 2,
                "rope_parameters": lambda config: {**config.section("rope_parameters").values, "rope_theta": 1e4},
            },
        ),
        processor_assumed={**projector.PLAIN_PROCESSOR, "merge_size": 2, "temporal_patch_size": 1},
    ),
)
