"""The projector of InternVL: a tower with learned positions, a vector for the whole picture and scaled layers.

Four patches of a square lie side by side in one vector, which is normalised. Of the tower with 6 billion weights
llama.cpp knows its width and number of layers only, and normalises otherwise; it is refused. The vector for the whole
picture comes last in llama.cpp, where its position is first in a checkpoint: positions are brought into that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Layout, Settings, Value
from quantizer.architectures.projectors import projector
from quantizer.checkpoint.config import CheckpointError, Config

_OTHERWISE_NORMALISED = (3200, 45)  # the hidden size and the number of layers by which llama.cpp knows that tower
_BIASED = ("attn_q.bias", "attn_k.bias", "attn_v.bias")


def _n_joined(config: Config) -> int:
    """Return the patches on each side of a square that becomes one vector. Raises CheckpointError unless all fit."""
    ratio = config.section("model").optional_number("downsample_ratio") or 0.5
    n_joined = round(1 / ratio) if 0 < ratio <= 1 else 0
    if n_joined == 0 or n_joined * ratio != 1 or shapes.n_patches_per_side(config) % n_joined:
        raise CheckpointError(f"config.json has downsample_ratio = {ratio}.", "Check config.json.")
    return n_joined


def _pieces(name: str, default: int) -> Callable[[Config], Value]:
    """Return a function that reads how many pieces a picture is cut into."""
    return lambda config: default if (n := projector.processor_of(config).optional_integer(name)) is None else n


def _norm(config: Config) -> str:
    shape = config.integer("hidden_size"), config.integer("num_hidden_layers")
    return "none" if shape == _OTHERWISE_NORMALISED else "layer_norm"


def _layer(config: Config, _i: int) -> shapes.Dimensions:
    has_biases = config.flag("attention_bias") is True
    return {
        **{name: extents for name, extents in projector.TOWER_LAYER.items() if has_biases or name not in _BIASED},
        "ls1.weight": ("n_embd",),
        "ls2.weight": ("n_embd",),
    }


def _outside_layers(config: Config) -> shapes.Dimensions:
    n_joined = config.integer("hidden_size") * _n_joined(config) ** 2
    weights: shapes.Dimensions = {
        "mm.model.mlp.0.weight": (n_joined,),
        "mm.model.mlp.1.weight": (n_joined, "n_projected"),
        "mm.model.mlp.3.weight": ("n_projected", "n_projected"),
    }
    return {
        "v.class_embd": ("n_embd", 1, 1),
        "v.patch_embd.weight": ("n_patch", "n_patch", 3, "n_embd"),
        "v.patch_embd.bias": ("n_embd",),
        "v.position_embd.weight": ("n_embd", shapes.n_patches_per_side(config) ** 2 + 1),
        **weights,
        **shapes.biases(weights),
    }


def _of_the_whole(config: Config) -> dict[str, Any]:
    """Return what the config of the whole says of what follows the tower, and the sizes of the tower."""
    whole = config.section("model").values
    named = ("projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy")
    settings = {name: whole.get(name) for name in named}
    for name in ("image_size", "patch_size"):
        value = config.values[name]  # or a list of height and width
        sides = value if isinstance(value, list) else [value, value]
        if len(sides) != 2 or sides[0] != sides[1]:
            cause = f"config.json has {name} = {str(value)[:64]}, which is not square."
            raise CheckpointError(cause, "Check config.json.")
        settings[name] = sides[0]
    return settings


INTERNVL = (
    projector.Projector(
        kind="internvl",
        hf_classes=("InternVLForConditionalGeneration",),
        modules=("vision_tower.", "multi_modal_projector."),
        hyperparameters=(
            *(projector.TOWER + projector.PICTURE + projector.GELU),
            projector.layer_norm_eps(1e-6),
            rows.u32("vision.projector.scale_factor", _n_joined),
            rows.u32("vision.preproc_min_tiles", _pieces("min_patches", 1)),
            rows.u32("vision.preproc_max_tiles", _pieces("max_patches", 12)),
        ),
        tensors=projector.TowerTensors(layer=_layer, model=_outside_layers),
        names=projector.TowerNames(
            renames={
                r"^model\.": "",
                r"^vision_tower\.": "model.vision_tower.",
                r"\.embeddings\.position_embeddings$": ".embeddings.position_embeddings.weight",
                r"\.lambda_(\d)$": r".lambda_\1.weight",
                r"^multi_modal_projector\.layer_norm\.": "mlp1.0.",
                r"^multi_modal_projector\.linear_1\.": "mlp1.1.",
                r"^multi_modal_projector\.linear_2\.": "mlp1.3.",
            },
            unused=("model.vision_tower.embeddings.mask_token",),
        ),
        layout=Layout(
            reshaped=("V_ENC_EMBD_POS",),
            row_orders={"V_ENC_EMBD_POS": lambda _config, n_rows: np.roll(np.arange(n_rows), -1)},
        ),
        settings=Settings(
            defaults=projector.sizes(
                hidden=1024,
                feed_forward=4096,
                layers=24,
                heads=16,
                image_size=448,
                patch_size=14,
                norm_type="layer_norm",
            ),
            assumed={
                "hidden_act": "gelu",
                "num_channels": 3,
                "norm_type": _norm,
                "use_qk_norm": False,
                # the norm behind the layers is for another
                "use_mean_pooling": True,
                "use_absolute_position_embeddings": True,
                "projector_hidden_act": "gelu",
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "default",
            },
        ),
        derived=_of_the_whole,
        processor_assumed=projector.PLAIN_PROCESSOR,
    ),
)
