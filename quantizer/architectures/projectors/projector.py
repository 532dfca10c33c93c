"""An entry of the table of projectors, and the rows, tensors and settings that most of them share.

A projector is what lets a language model see or hear: a tower that turns a picture or a sound into vectors, and what
brings these to the width of the language model. llama.cpp keeps both in a file of its own, of the architecture `clip`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Hyperparameter, RequiredTensors, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import FileTensor, RearrangedTensor, SourceTensor


@dataclass(frozen=True, slots=True)
class TowerTensors(RequiredTensors):
    """The tensors of a tower, which has no rope scaling to refuse."""

    generate: Callable[[Config], Sequence[SourceTensor]] | None = lambda _config: ()


@dataclass(frozen=True, slots=True)
class TowerNames(TensorNames):
    """The names of a tower's tensors; matrices after the tower are numbered too."""

    blocks: str = "v.blk"
    n_numbered: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector(Architecture):
    """Everything that converting the projectors of some HF classes takes; `kind` is llama.cpp's name for them.

    The config that its functions get has the settings of the tower, and in the sections `language`, `processor` and
    `model` those of the language model, of preprocessor_config.json and of the whole config.json.
    """

    gguf_name: str = "clip"
    names: TensorNames = TowerNames()
    kind: str
    # llama.cpp's word for the tower: "vision" or "audio"
    encoder: str = "vision"
    # beginnings of the names of its tensors, without "model."
    modules: tuple[str, ...]
    # the section of config.json with the tower's settings
    section: str = "vision_config"
    # settings that follow from others and replace the tower's own
    derived: Callable[[Config], Mapping[str, Any]] = lambda _config: {}
    # values of preprocessor_config.json that libmtmd assumes
    processor_assumed: Mapping[str, Any] = field(default_factory=dict)
    # llama.cpp's name -> the token whose row of the language model's embeddings that is
    token_rows: Mapping[str, str] = field(default_factory=dict)
    # tensors that libmtmd cannot use in blocks
    plain: tuple[str, ...] = ()


def processor_of(config: Config) -> Config:
    return config.section("processor")


def colours_apart(kernel: FileTensor, name: str, config: Config) -> RearrangedTensor:
    """Return a matrix of patches, whose colours are stored pixel by pixel, as a kernel with each colour apart."""
    side, n_numbers = config.integer("patch_size"), math.prod(kernel.shape)
    if len(kernel.shape) != 2 or kernel.shape[0] != 3 * side**2:
        raise CheckpointError(f"{kernel.name} does not match patches of {side} pixels.", "Check patch_size.")
    order = np.arange(n_numbers).reshape(-1, side, side, 3).transpose(0, 3, 1, 2).reshape(-1)
    one_in_a_row = replace(kernel, shape=(1, n_numbers))
    return RearrangedTensor(one_in_a_row, name, (side, side, 3, kernel.shape[1]), order)


_LARGEST = 1e6


def _three_numbers(name: str) -> Callable[[Config], Value]:
    """Return a function that reads a number for each colour from preprocessor_config.json."""

    def read(config: Config) -> list[float]:
        values = processor_of(config).values.get(name)
        if not isinstance(values, list) or len(values) != 3 or not all(map(_is_plausible, values)):
            raise CheckpointError(
                f"preprocessor_config.json has {name} = {str(values)[:64]}.", "It should be three numbers."
            )
        if name == "image_std" and 0 in values:
            raise CheckpointError("preprocessor_config.json has an image_std of 0.", "Check the file.")
        return list(map(float, values))

    return read


def _is_plausible(value: object) -> bool:
    """Return whether `value` is a number that colours may be compared with; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def layer_norm_eps(default: float, encoder: str = "vision") -> Hyperparameter:
    """Return the row of what norms add to the variance."""
    return rows.f32(
        f"{encoder}.attention.layer_norm_epsilon",
        lambda config: default if (eps := config.optional_number("layer_norm_eps")) is None else eps,
    )


def plain_rotation(config: Config) -> dict[str, Any]:
    """Return the settings of rotary positions as libmtmd has them, which may be called default too."""
    stated = config.section("rope_parameters")
    kind = "default" if stated.text("rope_type") == "default" else "axial"
    return {**stated.values, "rope_type": kind, "rope_theta": 1e4}


def _n_bands(config: Config) -> int:
    """Return the number of bands of a spectrogram. Raises CheckpointError where the tower and the processor differ."""
    n_bands = config.integer("num_mel_bins")
    if (processor_of(config).optional_integer("feature_size") or n_bands) != n_bands:
        raise CheckpointError(
            f"config.json has {n_bands} mel bands, preprocessor_config.json another number.", "Check the file."
        )
    return n_bands


def _sizes(encoder: str) -> tuple[Hyperparameter, ...]:
    return (
        rows.u32(f"{encoder}.embedding_length", "hidden_size"),
        rows.u32(f"{encoder}.feed_forward_length", "intermediate_size"),
        rows.u32(f"{encoder}.block_count", "num_hidden_layers"),
        rows.u32(f"{encoder}.attention.head_count", "num_attention_heads"),
    )


def _projected(encoder: str) -> Hyperparameter:
    return rows.u32(f"{encoder}.projection_dim", lambda config: config.section("language").integer("hidden_size"))


def sizes(*, hidden: int, feed_forward: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Return the default sizes of a tower, and other defaults, under the names of config.json."""
    return {
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


# the tower, and how pictures or sounds come to it
TOWER = (
    _projected("vision"),
    rows.u32("vision.image_size", "image_size"),
    rows.u32("vision.patch_size", "patch_size"),
    *_sizes("vision"),
)
SOUND_TOWER = (_projected("audio"), *_sizes("audio"), rows.u32("audio.num_mel_bins", _n_bands))
PICTURE = (
    rows.f32_list("vision.image_mean", _three_numbers("image_mean")),
    rows.f32_list("vision.image_std", _three_numbers("image_std")),
)
GELU = (rows.boolean("use_gelu", True),)
SILU = (rows.boolean("use_silu", True),)
PLAIN_PROCESSOR: Mapping[str, Any] = {"do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}
# a spectrogram as Whisper's
SOUND_PROCESSOR: Mapping[str, Any] = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "dither": 0.0}

TOWER_WEIGHTS: shapes.Dimensions = {
    "ln1.weight": ("n_embd",),
    "ln2.weight": ("n_embd",),
    "attn_q.weight": ("n_embd", "n_embd"),
    "attn_k.weight": ("n_embd", "n_embd"),
    "attn_v.weight": ("n_embd", "n_embd"),
    "attn_out.weight": ("n_embd", "n_embd"),
    "ffn_up.weight": ("n_embd", "n_ff"),
    "ffn_down.weight": ("n_ff", "n_embd"),
}
# a layer of a tower with biases everywhere, and what lies around the layers of one with learned positions
TOWER_LAYER: shapes.Dimensions = {**TOWER_WEIGHTS, **shapes.biases(TOWER_WEIGHTS)}
TOWER_TENSORS: shapes.Dimensions = {
    "v.patch_embd.weight": ("n_patch", "n_patch", 3, "n_embd"),
    "v.patch_embd.bias": ("n_embd",),
    "v.position_embd.weight": ("n_embd", "n_patches"),
    "v.post_ln.weight": ("n_embd",),
    "v.post_ln.bias": ("n_embd",),
}
