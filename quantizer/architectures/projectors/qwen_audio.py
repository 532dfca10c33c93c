"""The projectors of Qwen 3-ASR and 3-Omni: an encoder that hears second by second, as pictures of a spectrogram.

Three convolutions bring a second to 13 vectors, numbered anew in each; eight seconds then attend to each other.
Published checkpoints keep what speaks beside the part that answers, the `thinker`, in names and in the config.
Omni also sees, and its pictures have vectors for later layers of the language model. All vectors of a file are of one
width in libmtmd, so that those of sounds get zeros there, which is what the original adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantizer.architectures.projectors.projector import (
    SOUND_PROCESSOR,
    SOUND_TOWER,
    Projector,
    layer_norm_eps,
)
from quantizer.architectures.projectors.qwen_vl import DEEPSTACK
from quantizer.architectures.projectors.whisper import SOUND_LAYER, WHISPER_NAMES
from quantizer.architectures.shapes import Dimensions, biases
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.derived_tensors import ZeroExtendedTensor
from quantizer.convert.source_model import FileTensor, SourceTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named

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
        raise CheckpointError(f"config.json makes waves of {width} numbers.", "It should be an even number above 2.")
    return [_Waves("a.position_embd.weight", width)]


def _halved(n: int) -> int:
    """Return what a convolution leaves of `n` that takes every second."""
    return (n + 1) // 2


def _encoder(config: Config) -> Dimensions:
    n_kernels = config.integer("downsample_hidden_size")
    n_bands = _halved(_halved(_halved(config.integer("num_mel_bins"))))
    weights: Dimensions = {"mm.a.mlp.1.weight": ("n_embd", "n_embd"), "mm.a.mlp.2.weight": ("n_embd", "n_projected")}
    return {
        "a.conv2d.1.weight": (3, 3, 1, n_kernels),
        **{f"a.conv2d.{i}.weight": (3, 3, n_kernels, n_kernels) for i in (2, 3)},
        **{f"a.conv2d.{i}.bias": (1, 1, n_kernels) for i in (1, 2, 3)},
        "a.conv_out.weight": (n_bands * n_kernels, "n_embd"),
        "a.position_embd.weight": ("n_embd", _N_POSITIONS),
        "a.post_ln.weight": ("n_embd",),
        "a.post_ln.bias": ("n_embd",),
        **weights,
        **biases(weights),
    }


_ASR = Projector(
    kind="qwen3a",
    encoder="audio",
    hf_classes=("Qwen3ASRForConditionalGeneration",),
    modules=("audio_tower.", "multi_modal_projector.", "thinker.audio_tower."),
    section="audio_config",
    blocks="a.blk",
    hyperparameters=(*SOUND_TOWER, layer_norm_eps(1e-5, "audio")),
    layer_tensors={**SOUND_LAYER, "attn_k.bias": ("n_embd",)},
    model_tensors=_encoder,
    generate=_positions,
    renames={
        r"^(thinker|model)\.(?=audio_tower\.|multi_modal_projector\.)": "",
        r"^audio_tower\.proj(?=[12]\.)": "audio.multi_modal_projector.linear_",
        r"^multi_modal_projector\.": "audio.multi_modal_projector.",
    },
    reshaped=("A_ENC_CONV2D",),
    plain=tuple(f"a.conv2d.{i}.weight" for i in (1, 2, 3)),
    aliases=WHISPER_NAMES,
    defaults={
        "num_mel_bins": 128,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "downsample_hidden_size": 480,
    },
    assumed={
        "activation_function": lambda _config: "gelu",
        "n_window": lambda _config: 50,
        "n_window_infer": lambda _config: 800,
    },
    processor_assumed=SOUND_PROCESSOR,
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


def _widened_encoder(config: Config) -> Dimensions:
    n_projected = _n_widths(config) * config.section("language").integer("hidden_size")
    weights: Dimensions = {"mm.a.mlp.2.weight": ("n_embd", n_projected)}
    return {**_encoder(config), **weights, **biases(weights)}


QWEN_AUDIO = (
    _ASR,
    replace(
        _ASR,
        hf_classes=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
        modules=("audio_tower.", "thinker.audio_tower."),
        model_tensors=_widened_encoder,
        splits={f".linear_2.{ending}": {f".linear_2.{ending}": _widened} for ending in ("weight", "bias")},
        defaults={
            **_ASR.defaults,
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_attention_heads": 20,
        },
    ),
)
