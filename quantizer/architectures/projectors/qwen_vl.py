"""Projectors of Qwen 2-VL to 3-Omni and 3.5, GLM-4V and GLM-OCR: towers that rotate by row and column, and take
pictures of any size.

A square of four patches becomes one vector. The kernel of the patches spans two frames of a video, which llama.cpp
keeps as two kernels; a still picture is both frames. Qwen 2.5-VL attends within windows in all but every n-th layer.
Qwen 3-VL also gives vectors of some layers to the first layers of the language model, by the number of the layer in
llama.cpp and one after the other in a checkpoint. GLM-4V has learned positions beside rotation, GLM-OCR normalised
heads; in both a convolution merges the patches, and a gated feed-forward follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Layout, Settings, Value
from quantizer.architectures.projectors import projector
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, rows_in
from quantizer.convert.source_model import FileTensor, RearrangedTensor

N_FRAMES, _N_MERGED = 2, 4  # frames of a kernel, patches of a vector
DEEPSTACK = [8, 16, 24]  # transformers' default


def _frame(number: int) -> Cut:
    """Return the cut that takes the kernel of one frame."""

    def cut(kernel: FileTensor, name: str, _config: Config) -> RearrangedTensor:
        if len(kernel.shape) != 5 or kernel.shape[2] != N_FRAMES:
            raise CheckpointError(f"{kernel.name} does not span {N_FRAMES} frames.", "Choose another model.")
        width, height, n_frames, n_colours, n_kernels = kernel.shape
        row_numbers = np.arange(math.prod(kernel.shape[1:])).reshape(n_kernels, n_colours, n_frames, height)
        return RearrangedTensor(
            kernel, name, (width, height, n_colours, n_kernels), row_numbers[:, :, number].reshape(-1)
        )

    return cut


FRAMES: Mapping[str, Mapping[str, Cut]] = {
    ".patch_embed.proj.weight": {".patch_embed.proj.weight": _frame(0), ".patch_embed.proj.weight.1": _frame(1)}
}


def _third(number: int) -> Callable[[Config, int], npt.NDArray[np.intp]]:
    """Return the rows of the queries, the keys or the values."""
    return lambda _config, n_rows: np.arange(n_rows).reshape(3, -1)[number] if n_rows % 3 == 0 else np.arange(n_rows)


_THIRDS: Mapping[str, Mapping[str, Cut]] = {
    f".attn.qkv.{ending}": {f".attn.{name}.{ending}": rows_in(_third(i)) for i, name in enumerate("qkv")}
    for ending in ("weight", "bias")
}


def _merger(config: Config) -> shapes.Dimensions:
    n_merged = _N_MERGED * config.integer("hidden_size")
    weights: shapes.Dimensions = {"mm.0.weight": (n_merged, n_merged), "mm.2.weight": (n_merged, "n_projected")}
    return {**weights, **shapes.biases(weights)}


def _outside_layers(config: Config) -> shapes.Dimensions:
    kernel = ("n_patch", "n_patch", 3, "n_embd")
    return {
        "v.patch_embd.weight": kernel,
        "v.patch_embd.weight.1": kernel,
        "v.post_ln.weight": ("n_embd",),
        **_merger(config),
    }


def _full_attention(config: Config) -> Value:
    """Return n where every n-th layer attends to the whole picture. Raises CheckpointError for another pattern."""
    layers = config.values.get("fullatt_block_indexes", [7, 15, 23, 31])
    n_layers = config.integer("num_hidden_layers")
    every = next((n for n in range(1, n_layers + 1) if layers == list(range(n - 1, n_layers, n))), None)
    if every is None:
        raise CheckpointError(
            f"config.json has fullatt_block_indexes = {str(layers)[:64]}, which is not every n-th layer.",
            "Choose another model.",
        )
    return every


def _deepstack(config: Config) -> list[int]:
    """Return the layers whose vectors go to the language model. Raises CheckpointError for one that is not there."""
    layers = config.values.get("deepstack_visual_indexes", DEEPSTACK)
    n_layers = config.integer("num_hidden_layers")
    if not isinstance(layers, list) or not all(type(layer) is int and 0 <= layer < n_layers for layer in layers):
        raise CheckpointError(f"config.json has deepstack_visual_indexes = {layers}.", "Check the file.")
    return layers


def _deepstack_tensors(config: Config) -> shapes.Dimensions:
    n_merged = _N_MERGED * config.integer("hidden_size")
    weights: shapes.Dimensions = {
        f"v.deepstack.{layer}.{name}.weight": extents
        for layer in _deepstack(config)
        for name, extents in {
            "norm": (n_merged,),
            "fc1": (n_merged, n_merged),
            "fc2": (n_merged, "n_projected"),
        }.items()
    }
    return {**weights, **shapes.biases(weights)}


def _numbered(config: Config) -> projector.Projector:
    """Return the entry with the names of what comes after some of the layers."""
    places = {
        rf"^visual\.deepstack_merger_list\.{i}\.(linear_)?": f"v.deepstack.{layer}."
        for i, layer in enumerate(_deepstack(config))
    }
    return replace(_QWEN_3, names=replace(_QWEN_3.names, renames={**_QWEN_3.names.renames, **places}))


def _side_of_positions(config: Config) -> dict[str, Any]:
    """Return the size of the picture that the learned positions are for. Raises CheckpointError unless it is square."""
    n_positions = config.integer("num_position_embeddings")
    side = math.isqrt(n_positions)
    if side * side != n_positions:
        raise CheckpointError(
            f"config.json has num_position_embeddings = {n_positions}, which is not a square number.", "Check the file."
        )
    return {"image_size": side * config.integer("patch_size")}


ASSUMED_OF_FRAMES: Mapping[str, Any] = {
    "rope_parameters": projector.plain_rotation,
    "spatial_merge_size": 2,
    "temporal_patch_size": N_FRAMES,
    "in_channels": 3,
    "in_chans": 3,
}
_BASE = projector.Projector(
    kind="qwen2vl_merger",
    hf_classes=("Qwen2VLForConditionalGeneration",),
    modules=("visual.",),
    hyperparameters=(*projector.TOWER, *projector.PICTURE, projector.layer_norm_eps(1e-6)),
    tensors=projector.TowerTensors(
        layer=projector.TOWER_LAYER, model=lambda config: {**_outside_layers(config), "v.post_ln.bias": ("n_embd",)}
    ),
    names=projector.TowerNames(renames={r"^model\.visual\.": "visual."}, suffixes=(".weight.1",)),
    layout=Layout(splits={**FRAMES, **_THIRDS}),
    settings=Settings(
        aliases={"depth": "num_hidden_layers", "num_heads": "num_attention_heads"},
        defaults={
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "patch_size": 14,
            "embed_dim": 1280,
            "mlp_ratio": 4,
            "image_size": 560,  # that of llama.cpp's trial run: all are right
        },
        assumed={**ASSUMED_OF_FRAMES, "hidden_act": "quick_gelu"},
    ),
    # the config's hidden size is the language model's
    derived=lambda config: {
        "hidden_size": config.integer("embed_dim"),
        "intermediate_size": int(config.integer("embed_dim") * config.number("mlp_ratio")),
    },
    processor_assumed={**projector.PLAIN_PROCESSOR, "merge_size": 2, "temporal_patch_size": N_FRAMES},
)
_GATED: shapes.Dimensions = {**projector.TOWER_WEIGHTS, "ffn_gate.weight": ("n_embd", "n_ff")}
_NORMS = ("ln1.bias", "ln2.bias")
_APART = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_QWEN_3 = replace(
    _BASE,
    kind="qwen3vl_merger",
    hf_classes=("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    hyperparameters=(
        *(projector.TOWER + projector.PICTURE + projector.GELU),
        projector.layer_norm_eps(1e-6),
        rows.u32("vision.spatial_merge_size", 2),
        rows.bool_list(
            "vision.is_deepstack_layers",
            lambda config: [i in _deepstack(config) for i in range(config.integer("num_hidden_layers"))],
        ),
    ),
    tensors=replace(
        _BASE.tensors,
        layer={
            **shapes.without(projector.TOWER_LAYER, *_APART, *shapes.biases(dict.fromkeys(_APART, ()))),
            "attn_qkv.weight": ("n_embd", "3 n_embd"),
            "attn_qkv.bias": ("3 n_embd",),
        },
        model=lambda config: {
            **_outside_layers(config),
            "v.patch_embd.bias": ("n_embd",),
            "v.post_ln.bias": ("n_embd",),
            "v.position_embd.weight": ("n_embd", "n_patches"),
            **_deepstack_tensors(config),
        },
    ),
    names=replace(
        _BASE.names,
        renames={
            **_BASE.names.renames,
            r"^visual\.merger\.norm\.": "v.post_ln.",
            r"^visual\.merger\.linear_fc1\.": "mm.0.",
            r"^visual\.merger\.linear_fc2\.": "mm.2.",
        },
    ),
    layout=replace(_BASE.layout, splits=FRAMES),
    settings=replace(
        _BASE.settings,
        defaults=projector.sizes(
            hidden=1152, feed_forward=4304, layers=27, heads=16, patch_size=16, num_position_embeddings=2304
        ),
        assumed={**ASSUMED_OF_FRAMES, "hidden_act": "gelu_pytorch_tanh"},
    ),
    derived=_side_of_positions,
    variant=_numbered,
)

_OMNI_NAMES = {
    r"^(thinker|model)\.visual\.": "visual.",
    r"^visual\.merger_list\.": "visual.deepstack_merger_list.",
    r"^(visual\.(?:deepstack_merger_list\.\d+|merger)\.)ln_q\.": r"\1norm.",
    r"^(visual\.(?:deepstack_merger_list\.\d+|merger)\.)mlp\.0\.": r"\1linear_fc1.",
    r"^(visual\.(?:deepstack_merger_list\.\d+|merger)\.)mlp\.2\.": r"\1linear_fc2.",
}


def _omni(config: Config) -> projector.Projector:
    entry = _numbered(config)
    return replace(
        entry, modules=_OMNI.modules, names=replace(entry.names, renames={**_OMNI_NAMES, **entry.names.renames})
    )


_OMNI = replace(
    _QWEN_3,
    hf_classes=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    modules=("visual.", "thinker.visual."),
    variant=_omni,
)

_QWEN_25 = replace(
    _BASE,
    kind="qwen2.5vl_merger",
    hf_classes=("Qwen2_5_VLForConditionalGeneration",),
    hyperparameters=(*_BASE.hyperparameters, *projector.SILU, rows.u32("vision.n_wa_pattern", _full_attention)),
    tensors=replace(
        _BASE.tensors, layer={**_GATED, **shapes.without(shapes.biases(_GATED), *_NORMS)}, model=_outside_layers
    ),
    settings=replace(
        _BASE.settings,
        defaults=projector.sizes(hidden=3584, feed_forward=3420, layers=32, heads=16, patch_size=14, image_size=560),
        assumed={**ASSUMED_OF_FRAMES, "hidden_act": "silu", "window_size": 112},
    ),
    derived=lambda _config: {},
)

QWEN_VL_PROJECTORS = (
    _BASE,
    _QWEN_25,
    replace(
        _QWEN_25,
        hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
        modules=("visual.", "thinker.visual."),
        names=replace(_QWEN_25.names, renames={r"^thinker\.visual\.": "visual."}),
        approximations=lambda _config: (
            "The model will not hear: the original's encoder hears two seconds at a time, llama.cpp's 30.",
        ),
    ),
    _QWEN_3,
    # without vectors for later layers
    replace(
        _QWEN_3,
        hf_classes=("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        settings=_QWEN_3.settings.plus(
            defaults={"deepstack_visual_indexes": []}, assumed={"deepstack_visual_indexes": []}
        ),
        variant=lambda _config: None,
    ),
    _OMNI,
)


_PLACES = ("v.position_embd.weight", "v.norm_embd.weight")
_N_MERGED_PER_SIDE = 2  # patches on each side of a square


def _glm_layer(config: Config, _i: int) -> shapes.Dimensions:
    # in the tower feed-forwards are as wide as the language model
    width = config.integer("out_hidden_size")
    bias: shapes.Dimensions = {"attn_qkv.bias": ("3 n_embd",)}
    return {
        **shapes.without(projector.TOWER_WEIGHTS, *_APART),
        "attn_qkv.weight": ("n_embd", "3 n_embd"),
        **(bias if config.flag("attention_bias") else {}),
        **shapes.feed_forward(width),
    }


def _glm_ocr_layer(config: Config, _i: int) -> shapes.Dimensions:
    weights: shapes.Dimensions = {
        "attn_qkv.weight": ("n_embd", "3 n_embd"),
        "attn_out.weight": ("n_embd", "n_embd"),
        **shapes.GATED_FEED_FORWARD,
    }
    return {
        "ln1.weight": ("n_embd",),
        "ln2.weight": ("n_embd",),
        "attn_q_norm.weight": ("n_head",),
        "attn_k_norm.weight": ("n_head",),
        **weights,
        **(shapes.biases(weights) if config.flag("attention_bias") is not False else {}),
    }


def _glm_outside_layers(_config: Config) -> shapes.Dimensions:
    kernel = ("n_patch", "n_patch", 3, "n_embd")
    return {
        "v.patch_embd.weight": kernel,
        "v.patch_embd.weight.1": kernel,
        "v.patch_embd.bias": ("n_embd",),
        "v.norm_embd.weight": ("n_embd",),
        "v.position_embd.weight": ("n_embd", "n_patches"),
        "v.post_ln.weight": ("n_embd",),
        "mm.patch_merger.weight": (_N_MERGED_PER_SIDE, _N_MERGED_PER_SIDE, "n_embd", "n_projected"),
        "mm.patch_merger.bias": ("n_projected",),
        "mm.model.fc.weight": ("n_projected", "n_projected"),
        "mm.post_norm.weight": ("n_projected",),
        "mm.post_norm.bias": ("n_projected",),
        "mm.gate.weight": ("n_projected", "n_ff"),
        "mm.up.weight": ("n_projected", "n_ff"),
        "mm.down.weight": ("n_ff", "n_projected"),
    }


def _glm_ocr_outside_layers(config: Config) -> shapes.Dimensions:
    width = 3 * config.integer("out_hidden_size")
    return {
        **shapes.without(_glm_outside_layers(config), *_PLACES),
        "mm.gate.weight": ("n_projected", width),
        "mm.up.weight": ("n_projected", width),
        "mm.down.weight": (width, "n_projected"),
    }


_GLM = projector.Projector(
    kind="glm4v",
    hf_classes=("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
    modules=("visual.",),
    hyperparameters=(
        *(projector.TOWER + projector.PICTURE + projector.SILU),
        rows.f32("vision.attention.layer_norm_epsilon", "rms_norm_eps"),
    ),
    tensors=projector.TowerTensors(layer=_glm_layer, model=_glm_outside_layers),
    names=projector.TowerNames(renames={r"^model\.visual\.": "visual."}, suffixes=(".weight.1",)),
    layout=Layout(splits=FRAMES),
    settings=Settings(
        aliases={"depth": "num_hidden_layers", "num_heads": "num_attention_heads"},
        defaults=projector.sizes(
            hidden=1536,
            feed_forward=13696,
            layers=24,
            heads=12,
            out_hidden_size=4096,
            image_size=336,
            patch_size=14,
            rms_norm_eps=1e-5,
        ),
        assumed={
            **ASSUMED_OF_FRAMES,
            "hidden_act": "silu",
            "out_hidden_size": lambda config: config.section("language").integer("hidden_size"),
        },
    ),
    # it is a convolution
    plain=("mm.patch_merger.weight",),
    processor_assumed={**projector.PLAIN_PROCESSOR, "merge_size": _N_MERGED_PER_SIDE, "temporal_patch_size": N_FRAMES},
)

GLM_4V = (
    _GLM,
    replace(
        _GLM,
        hf_classes=("GlmOcrForConditionalGeneration",),
        tensors=replace(_GLM.tensors, layer=_glm_ocr_layer, model=_glm_ocr_outside_layers),
        settings=_GLM.settings.plus(
            defaults={
                "num_attention_heads": 16,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "out_hidden_size": 1536,
            },
            assumed={"head_dim": shapes.even_head_size},
        ),
    ),
)
