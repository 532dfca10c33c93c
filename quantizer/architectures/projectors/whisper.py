"""Projectors behind the encoder of Whisper: those of Qwen 2-Audio and Audio Flamingo 3.

They hear 30 seconds at once, as a spectrogram that two convolutions shorten by half. Pairs of what then leaves the
layers are averaged, and brought to the width of the language model by one matrix or two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quantizer.architectures.projectors.projector import (
    SOUND_PROCESSOR,
    SOUND_TOWER,
    TOWER_LAYER,
    Projector,
    layer_norm_eps,
)
from quantizer.architectures.shapes import Dimensions, biases
from quantizer.checkpoint.config import Config

# llama.cpp's graph has no place for a bias of keys
SOUND_LAYER: Dimensions = {name: extents for name, extents in TOWER_LAYER.items() if name != "attn_k.bias"}
WHISPER_NAMES = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}


def _encoder(config: Config) -> Dimensions:
    return {
        "a.conv1d.1.weight": (3, config.integer("num_mel_bins"), "n_embd"),
        "a.conv1d.1.bias": (1, "n_embd"),
        "a.conv1d.2.weight": (3, "n_embd", "n_embd"),
        "a.conv1d.2.bias": (1, "n_embd"),
        "a.position_embd.weight": ("n_embd", config.integer("max_source_positions")),
        "a.post_ln.weight": ("n_embd",),
        "a.post_ln.bias": ("n_embd",),
    }


def _with_matrices(weights: Dimensions) -> Callable[[Config], Dimensions]:
    """Return the tensors outside the layers, with these matrices and their biases behind the encoder."""
    return lambda config: {**_encoder(config), **weights, **biases(weights)}


_DEFAULTS: Mapping[str, Any] = {
    "num_mel_bins": 128,
    "max_source_positions": 1500,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
}
_BASE = Projector(
    kind="qwen2a",
    encoder="audio",
    hf_classes=("Qwen2AudioForConditionalGeneration",),
    modules=("audio_tower.", "multi_modal_projector."),
    section="audio_config",
    blocks="a.blk",
    hyperparameters=(*SOUND_TOWER, layer_norm_eps(1e-5, "audio")),
    layer_tensors=SOUND_LAYER,
    model_tensors=_with_matrices({"mm.a.fc.weight": ("n_embd", "n_projected")}),
    renames={
        r"^model\.(?=audio_tower\.|multi_modal_projector\.)": "",
        r"^multi_modal_projector\.": "audio.multi_modal_projector.",
    },
    # libmtmd adds these to rows that are as long as the sound
    reshaped=("A_ENC_CONV1D",),
    plain=("a.conv1d.1.weight", "a.conv1d.2.weight"),
    aliases=WHISPER_NAMES,
    defaults=_DEFAULTS,
    assumed={
        "activation_function": lambda _config: "gelu",
        "max_source_positions": lambda _config: 1500,
    },
    processor_assumed={**SOUND_PROCESSOR, "chunk_length": 30},
    approximations=lambda _config: (
        "llama.cpp hears a sound of less than 30 seconds as if silence followed, which the original leaves out.",
    ),
)

WHISPER = (
    _BASE,
    replace(
        _BASE,
        kind="musicflamingo",
        hf_classes=("AudioFlamingo3ForConditionalGeneration",),
        model_tensors=_with_matrices(
            {"mm.a.mlp.1.weight": ("n_embd", "n_projected"), "mm.a.mlp.2.weight": ("n_projected", "n_projected")}
        ),
        assumed={
            **_BASE.assumed,
            "projector_hidden_act": lambda _config: "gelu",
            "projector_bias": lambda _config: True,
        },
        # settings of the whole
        derived=lambda config: {
            name: value for name, value in config.section("model").values.items() if name.startswith("projector_")
        },
    ),
)
