"""Projectors that hear. Behind the encoder of Whisper: Qwen 2-Audio and Audio Flamingo 3, which take 30 seconds at
once, as a spectrogram that two convolutions shorten by half; pairs of what then leaves the layers are averaged, and
brought to the width of the language model by one matrix or two.

Qwen 3-ASR and 3-Omni hear second by second: three convolutions bring a second to 13 vectors, numbered anew in each;
eight seconds then attend to each other. Published checkpoints keep what speaks beside the part that answers, the
`thinker`, in names and in the config. Omni also sees, and its pictures have vectors for later layers of the language
model. All vectors of a file are of one width in libmtmd, so those of sounds get zeros there, as in the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantizer.architectures import shapes
from quantizer.architectures.architecture import Layout, Settings
from quantizer.architectures.projectors import projector
from quantizer.architectures.projectors.qwen_vl import DEEPSTACK
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import ZeroExtendedTensor
from quantizer.convert.source_model import FileTensor, SourceTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named

# llama.cpp's graph has no place for a bias of keys
SOUND_LAYER = shapes.without(projector.TOWER_LAYER, "attn_k.bias")
WHISPER_NAMES = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}


def _encoder(config: Config) -> shapes.Dimensions:
    return {
        "a.conv1d.1.weight": (3, config.integer("num_mel_bins"), "n_embd"),
        "a.conv1d.1.bias": (1, "n_embd"),
        "a.conv1d.2.weight": (3, "n_embd", "n_embd"),
        "a.conv1d.2.bias": (1, "n_embd"),
        "a.position_embd.weight": ("n_embd", config.integer("max_source_positions")),
        "a.post_ln.weight": ("n_embd",),
        "a.post_ln.bias": ("n_embd",),
    }


def _with_matrices(weights: shapes.Dimensions) -> Callable[[Config], shapes.Dimensions]:
    """Return the tensors outside the layers, with these matrices and their biases behind the encoder."""
    return lambda config: {**_encoder(config), **weights, **shapes.biases(weights)}


_DEFAULTS: Mapping[str, Any] = projector.sizes(
    hidden=1280, feed_forward=5120, layers=32, heads=20, num_mel_bins=128, max_source_positions=1500
)
_BASE = projector.Projector(
    kind="qwen2a",
    encoder="audio",
    hf_classes=("Qwen2AudioForConditionalGeneration",),
    modules=("audio_tower.", "multi_modal_projector."),
    section="audio_config",
    hyperparameters=(*projector.SOUND_TOWER, projector.layer_norm_eps(1e-5, "audio")),
    tensors=projector.TowerTensors(
        layer=SOUND_LAYER, model=_with_matrices({"mm.a.fc.weight": ("n_embd", "n_projected")})
    ),
    names=projector.TowerNames(
        blocks="a.blk",
        renames={
            r"^model\.(?=audio_tower\.|multi_modal_projector\.)": "",
            r"^multi_modal_projector\.": "audio.multi_modal_projector.",
        },
    ),
    layout=Layout(
        # libmtmd adds these to rows that are as long as the sound
        reshaped=("A_ENC_CONV1D",)
    ),
    settings=Settings(
        aliases=WHISPER_NAMES, defaults=_DEFAULTS, assumed={"activation_function": "gelu", "max_source_positions": 1500}
    ),
    plain=("a.conv1d.1.weight", "a.conv1d.2.weight"),
    processor_assumed={**projector.SOUND_PROCESSOR, "chunk_length": 30},
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
        tensors=replace(
            _BASE.tensors,
            model=_with_matrices(
                {"mm.a.mlp.1.weight": ("n_embd", "n_projected"), "mm.a.mlp.2.weight": ("n_projected", "n_projected")}
            ),
        ),
        settings=_BASE.settings.plus(assumed={"projector_hidden_act": "gelu", "projector_bias": True}),
        # settings of the whole
        derived=lambda config: {
            name: value for name, value in config.section("model").values.items() if name.startswith("projector_")
        },
    ),
)


_N_POSITIONS, _SLOWEST = 1500, 10_000


@dataclass(frozen=True, slots=True)
class _Waves:
    """Positions as sines, then cosines, of ever slower waves: computed, as no checkpoint stores them."""

    name: str
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.width, _N_POSITIONS)

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_waves = self.width // 2
        step = np.float32(-np.log(_SLOWEST) / (n_waves - 1))
        speeds = np.exp(step * np.arange(n_waves, dtype=np.float32))
        for start in range(0, _N_POSITIONS, rows_per_slab):
            rows = np.arange(start, min(start + rows_per_slab, _N_POSITIONS), dtype=np.float32)
            angles = rows[:, None] * speeds
            yield np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("<f4").tobytes()


def _positions(config: Config) -> Sequence[SourceTensor]:
    width = config.integer("hidden_size")
    if width % 2 or width < 4:
        raise CheckpointError(f"config.json has a hidden size of {width}.", "It should be an even number above 2.")
    return [_Waves("a.position_embd.weight", width)]


def _asr_encoder(config: Config) -> shapes.Dimensions:
    n_kernels = config.integer("downsample_hidden_size")
    n_bands = -(-config.integer("num_mel_bins") // 8)  # three convolutions, each of which takes every second
    weights: shapes.Dimensions = {
        "mm.a.mlp.1.weight": ("n_embd", "n_embd"),
        "mm.a.mlp.2.weight": ("n_embd", "n_projected"),
    }
    return {
        "a.conv2d.1.weight": (3, 3, 1, n_kernels),
        **{f"a.conv2d.{i}.weight": (3, 3, n_kernels, n_kernels) for i in (2, 3)},
        **{f"a.conv2d.{i}.bias": (1, 1, n_kernels) for i in (1, 2, 3)},
        "a.conv_out.weight": (n_bands * n_kernels, "n_embd"),
        "a.position_embd.weight": ("n_embd", _N_POSITIONS),
        "a.post_ln.weight": ("n_embd",),
        "a.post_ln.bias": ("n_embd",),
        **weights,
        **shapes.biases(weights),
    }


_ASR = projector.Projector(
    kind="qwen3a",
    encoder="audio",
    hf_classes=("Qwen3ASRForConditionalGeneration",),
    modules=("audio_tower.", "multi_modal_projector.", "thinker.audio_tower."),
    section="audio_config",
    hyperparameters=(*projector.SOUND_TOWER, projector.layer_norm_eps(1e-5, "audio")),
    tensors=projector.TowerTensors(
        layer={**SOUND_LAYER, "attn_k.bias": ("n_embd",)}, model=_asr_encoder, generate=_positions
    ),
    names=projector.TowerNames(
        blocks="a.blk",
        renames={
            r"^(thinker|model)\.(?=audio_tower\.|multi_modal_projector\.)": "",
            r"^audio_tower\.proj(?=[12]\.)": "audio.multi_modal_projector.linear_",
            r"^multi_modal_projector\.": "audio.multi_modal_projector.",
        },
    ),
    layout=Layout(reshaped=("A_ENC_CONV2D",)),
    settings=Settings(
        aliases=WHISPER_NAMES,
        defaults=projector.sizes(
            hidden=1024, feed_forward=4096, layers=24, heads=16, num_mel_bins=128, downsample_hidden_size=480
        ),
        assumed={"activation_function": "gelu", "n_window": 50, "n_window_infer": 800},
    ),
    plain=tuple(f"a.conv2d.{i}.weight" for i in (1, 2, 3)),
    processor_assumed=projector.SOUND_PROCESSOR,
    approximations=lambda _config: (
        "llama.cpp hears whole seconds: it continues the last one by silence, which the original leaves out.",
    ),
)


def _n_widths(config: Config) -> int:
    """Return how many vectors each place has: one, and one for each of the later layers that get some."""
    layers = config.section("model").section("vision_config").values.get("deepstack_visual_indexes", DEEPSTACK)
    return 1 + len(layers) if isinstance(layers, list) else 1


def _widened(tensor: FileTensor, name: str, config: Config) -> ZeroExtendedTensor:
    return ZeroExtendedTensor(tensor, name, _n_widths(config) * tensor.shape[-1])


def _widened_encoder(config: Config) -> shapes.Dimensions:
    n_projected = _n_widths(config) * config.section("language").integer("hidden_size")
    weights: shapes.Dimensions = {"mm.a.mlp.2.weight": ("n_embd", n_projected)}
    return {**_asr_encoder(config), **weights, **shapes.biases(weights)}


QWEN_AUDIO = (
    _ASR,
    replace(
        _ASR,
        hf_classes=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
        modules=("audio_tower.", "thinker.audio_tower."),
        tensors=replace(_ASR.tensors, model=_widened_encoder),
        layout=replace(
            _ASR.layout,
            splits={f".linear_2.{ending}": {f".linear_2.{ending}": _widened} for ending in ("weight", "bias")},
        ),
        settings=_ASR.settings.plus(defaults=projector.sizes(hidden=1280, feed_forward=5120, layers=32, heads=20)),
    ),
)
