"""Projectors as files: whether llama.cpp can be given one, and whether it belongs to a model.

Owns the kinds that libmtmd knows and the ranges of their sizes: it ends the process for others, or takes memory without
end. What only running a projector shows is found in `app.engine.load.auxiliary_loading`. Source: `init_vision`,
`init_audio` and mtmd_tokenizer in tools/mtmd/mtmd.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from quantizer.gguf.gguf_reader import ArrayRef, ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.projector_header import Encoder, ProjectorHeader, mismatch, read_projector
from quantizer.gguf.validation import validate_header

_SEES = frozenset(
    (
        *("mlp", "ldp", "ldpv2", "resampler", "adapter", "qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"),
        *("ling3vl", "step3vl", "gemma3", "gemma3nv", "gemma4v", "gemma4uv", "phi4", "idefics3", "pixtral"),
        *("internvl", "llama4", "lfm2", "kimivl", "paddleocr", "lightonocr", "cogvlm", "janus_pro", "dots_ocr"),
        *("dots3note_v", "deepseekocr", "deepseekocr2", "glm4v", "glm5v", "youtuvl", "yasa2", "kimik25"),
        *("nemotron_v2_vl", "exaone4_5", "minicpmv4_6", "mimovl", "minimax_m3", "granite4_vision", "muse-glimmer"),
    )
)
_HEARS = frozenset(
    (
        *("qwen2a", "qwen3a", "voxtral", "musicflamingo", "ultravox", "glma", "meralion", "lfm2a"),
        *("granite_speech", "gemma3na", "gemma4a", "gemma4ua", "parakeet", "dots3note_a", "mimo_audio"),
    )
)
_SPEAKS = frozenset(("qwen3tts_gen", "pockettts_gen"))
_KINDS = {"vision": _SEES, "audio": _HEARS, "gen.audio": _SPEAKS}
# Kinds whose embeddings or positions depend on what stands before a picture, so that prompts cannot share them.
_DEPENDENT = {
    "hunyuanvl": "the positions in a picture depend on the pictures before it",
    "deepseek4v": "its embeddings depend on where in the prompt a picture stands",
}
_REMEDY = "Name the mmproj GGUF that belongs to the model with --projector, or none."

# Suffix after "clip.vision.", "clip.audio." or "clip.gen.audio." -> inclusive range of a whole number.
_RANGES = {
    "image_size": (1, 8192),
    "patch_size": (1, 256),
    "embedding_length": (1, 65_536),
    "feed_forward_length": (0, 1 << 20),
    "block_count": (0, 512),
    "projection_dim": (0, 1 << 20),
    "attention.head_count": (1, 1024),
    "attention.head_count_kv": (1, 1024),
    "attention.head_dim": (1, 65_536),
    "num_mel_bins": (1, 4096),
    "projector.scale_factor": (1, 64),
    "projector.stack_factor": (1, 64),
    "projector.query_side": (1, 1024),
    "projector.window_side": (1, 1024),
    "projector.window_size": (1, 65_536),
    "projector.downsample_rate": (1, 64),
    "projector.head_count": (1, 1024),
    "spatial_merge_size": (1, 64),
    "image_min_pixels": (0, 1 << 27),
    "image_max_pixels": (1, 1 << 27),
    "preproc_image_size": (1, 16_384),
    "preproc_min_tiles": (0, 64),
    "preproc_max_tiles": (1, 64),
    "window_size": (1, 65_536),
    "n_wa_pattern": (0, 512),
    "chunk_size": (1, 1 << 20),
    "conv_kernel_size": (1, 1024),
    "max_pos_emb": (1, 1 << 20),
    "subsampling_factor": (1, 64),
    "sam.head_count": (1, 1024),
    "sam.block_count": (1, 512),
    "sam.embedding_length": (1, 65_536),
}
_MAX_MERGED_PATCH = 512  # pixels of a side: patch_size times what is merged
_MAX_PINPOINTS = 1024
_MAX_PINPOINT = 16_384


def validate_projector(path: Path, model: Header) -> ProjectorHeader:
    """Return the header of the projector at `path`, checked as far as a header can be, also against `model`. Raises
    ModelFileError with the first fault."""
    return check_projector_header(read_projector(path), model)


def check_projector_header(projector: ProjectorHeader, model: Header) -> ProjectorHeader:
    """Return `projector`, which may be on a hub, checked as `validate_projector` does. Raises as that does."""
    path = projector.path
    validate_header(projector.header)
    for encoder in projector.encoders:
        if reason := _DEPENDENT.get(encoder.kind):
            cause = f"{path.name} cannot be used ({encoder.kind}): {reason}."
            raise ModelFileError(cause, "Use the model for text only.")
        if encoder.kind not in _KINDS[encoder.name]:
            cause = f"{path.name} is a projector of an unknown kind, {encoder.kind[:32]!r}."
            raise ModelFileError(cause, "Update localllm, or set the projector to none.")
        for fault in _faults(projector.header, encoder):
            raise ModelFileError(f"{path.name} is not a valid projector: {fault}.", _REMEDY)
    if difference := mismatch(projector, model):
        raise ModelFileError(f"{path.name} does not belong to {model.path.name}: {difference}.", _REMEDY)
    return projector


def _faults(header: Header, encoder: Encoder) -> Iterator[str]:
    prefix = f"clip.{encoder.name}."
    for suffix, (low, high) in _RANGES.items():
        value = header.metadata.get(prefix + suffix)
        if value is not None and not (isinstance(value, int) and low <= value <= high):
            yield f"{prefix}{suffix} is {str(value)[:32]}, outside {low} to {high}"
    epsilon = header.metadata.get(f"{prefix}attention.layer_norm_epsilon", 1e-6)
    if not (isinstance(epsilon, float | int) and 0 <= epsilon <= 1):
        yield f"{prefix}attention.layer_norm_epsilon is {str(epsilon)[:32]}, outside 0 to 1"
    if encoder.name == "vision":
        yield from _picture_faults(header)


def _picture_faults(header: Header) -> Iterator[str]:
    patch = header.integer("clip.vision.patch_size") or 1
    for merge in ("projector.scale_factor", "spatial_merge_size"):
        if patch * (header.integer(f"clip.vision.{merge}") or 1) > _MAX_MERGED_PATCH:
            yield f"its patches have more than {_MAX_MERGED_PATCH} pixels a side"
    for name in ("image_mean", "image_std"):
        numbers = _numbers(header, f"clip.vision.{name}")
        if any(not math.isfinite(number) for number in numbers) or (name == "image_std" and 0 in numbers[:3]):
            yield f"its {name} is not a color: it has zeros, NaN or infinity"
    points = _numbers(header, "clip.vision.image_grid_pinpoints")
    if len(points) > _MAX_PINPOINTS or any(not 0 < point <= _MAX_PINPOINT for point in points):
        yield "its image_grid_pinpoints are out of range"


def _numbers(header: Header, key: str) -> list[float]:
    """Return an array of numbers, empty where the file has none; one infinity for anything else."""
    value = header.metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, ArrayRef) or value.count > _MAX_PINPOINTS:
        return [math.inf]
    numbers = header.array(key)
    return [number if isinstance(number, int | float) else math.inf for number in numbers]
