"""The projectors of GLM-4V and GLM-OCR: a tower like that of Qwen 2.5-VL without windows, with learned positions beside
rotation in the first, and normalised heads in the second.

A convolution makes one vector of a square of four patches, and a gated feed-forward follows it.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Hyperparameter
from quantizer.architectures.projectors.projector import (
    PICTURE,
    PLAIN_PROCESSOR,
    SILU,
    TOWER,
    TOWER_WEIGHTS,
    Projector,
)
from quantizer.architectures.projectors.qwen_vl import ASSUMED_OF_FRAMES, FRAMES, N_FRAMES
from quantizer.architectures.shapes import GATED_FEED_FORWARD, Dimensions, biases
from quantizer.checkpoint.config import Config

_APART = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_PLACES = ("v.position_embd.weight", "v.norm_embd.weight")
_N_MERGED = 2  # patches on each side of a square


def _layer(config: Config, _i: int) -> Dimensions:
    # in the tower feed-forwards are as wide as the language model
    width = config.integer("out_hidden_size")
    bias: Dimensions = {"attn_qkv.bias": ("3 n_embd",)}
    return {
        **{name: extents for name, extents in TOWER_WEIGHTS.items() if name not in _APART},
        "attn_qkv.weight": ("n_embd", "3 n_embd"),
        **(bias if config.flag("attention_bias") else {}),
        "ffn_gate.weight": ("n_embd", width),
        "ffn_up.weight": ("n_embd", width),
        "ffn_down.weight": (width, "n_embd"),
    }


def _layer_of_ocr(config: Config, _i: int) -> Dimensions:
    weights: Dimensions = {
        "attn_qkv.weight": ("n_embd", "3 n_embd"),
        "attn_out.weight": ("n_embd", "n_embd"),
        **GATED_FEED_FORWARD,
    }
    return {
        "ln1.weight": ("n_embd",),
        "ln2.weight": ("n_embd",),
        "attn_q_norm.weight": ("n_head",),
        "attn_k_norm.weight": ("n_head",),
        **weights,
        **(biases(weights) if config.flag("attention_bias") is not False else {}),
    }


def _outside_layers(_config: Config) -> Dimensions:
    kernel = ("n_patch", "n_patch", 3, "n_embd")
    return {
        "v.patch_embd.weight": kernel,
        "v.patch_embd.weight.1": kernel,
        "v.patch_embd.bias": ("n_embd",),
        "v.norm_embd.weight": ("n_embd",),
        "v.position_embd.weight": ("n_embd", "n_patches"),
        "v.post_ln.weight": ("n_embd",),
        "mm.patch_merger.weight": (_N_MERGED, _N_MERGED, "n_embd", "n_projected"),
        "mm.patch_merger.bias": ("n_projected",),
        "mm.model.fc.weight": ("n_projected", "n_projected"),
        "mm.post_norm.weight": ("n_projected",),
        "mm.post_norm.bias": ("n_projected",),
        "mm.gate.weight": ("n_projected", "n_ff"),
        "mm.up.weight": ("n_projected", "n_ff"),
        "mm.down.weight": ("n_ff", "n_projected"),
    }


def _outside_layers_of_ocr(config: Config) -> Dimensions:
    width = 3 * config.integer("out_hidden_size")
    return {
        **{name: extents for name, extents in _outside_layers(config).items() if name not in _PLACES},
        "mm.gate.weight": ("n_projected", width),
        "mm.up.weight": ("n_projected", width),
        "mm.down.weight": (width, "n_projected"),
    }


_GLM = Projector(
    kind="glm4v",
    hf_classes=("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
    modules=("visual.",),
    hyperparameters=(
        *TOWER,
        *PICTURE,
        *SILU,
        Hyperparameter("vision.attention.layer_norm_epsilon", "f32", lambda config: config.number("rms_norm_eps")),
    ),
    layer_tensors=_layer,
    model_tensors=_outside_layers,
    renames={r"^model\.visual\.": "visual."},
    splits=FRAMES,
    suffixes=(".weight.1",),
    aliases={"depth": "num_hidden_layers", "num_heads": "num_attention_heads"},
    # it is a convolution
    plain=("mm.patch_merger.weight",),
    defaults={
        "num_hidden_layers": 24,
        "num_attention_heads": 12,
        "hidden_size": 1536,
        "intermediate_size": 13696,
        "out_hidden_size": 4096,
        "image_size": 336,
        "patch_size": 14,
        "rms_norm_eps": 1e-5,
    },
    assumed={
        **ASSUMED_OF_FRAMES,
        "hidden_act": lambda _config: "silu",
        "out_hidden_size": lambda config: config.section("language").integer("hidden_size"),
    },
    processor_assumed={**PLAIN_PROCESSOR, "merge_size": _N_MERGED, "temporal_patch_size": N_FRAMES},
)

GLM_4V = (
    _GLM,
    replace(
        _GLM,
        hf_classes=("GlmOcrForConditionalGeneration",),
        layer_tensors=_layer_of_ocr,
        model_tensors=_outside_layers_of_ocr,
        defaults={
            **_GLM.defaults,
            "num_attention_heads": 16,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "out_hidden_size": 1536,
        },
        assumed={
            **_GLM.assumed,
            "head_dim": lambda config: config.integer("hidden_size") // max(1, config.integer("num_attention_heads")),
        },
    ),
)
