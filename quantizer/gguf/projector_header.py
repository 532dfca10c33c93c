"""The header of a projector (mmproj): what it sees, hears or speaks with, and for which models it was made.

Owns the reading of its encoders' hyperparameters, and the width of its embeddings. Whether libmtmd survives the file,
and what it takes to run, is decided elsewhere. Source: `load_hparams` and `clip_n_mmproj_embd` in tools/mtmd/clip.cpp
of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from quantizer.gguf.file_names import PROJECTOR_MARK
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.tensor_types import file_type_name

EncoderName: TypeAlias = Literal["vision", "audio", "gen.audio"]

SPEAKING_ARCHITECTURES = ("qwen3tts", "pockettts")  # of models that say texts aloud, with a projector, and no more
_ARCHITECTURE = "clip"
_REMEDY = "Name the mmproj GGUF that belongs to the model."
_MAX_SIZE, _MAX_SIDE, _MAX_TILES = 1 << 24, 8192, 256  # what is larger is no size
_VOICES = ("qwen3tts_spkenc", "pockettts_spkenc")  # encoders of a voice to speak with: they hear nothing said
_HAS_ENCODER = {"gen.audio": "clip.has_gen_audio_encoder"}  # where the key is not made of the name
_BY_ENCODER = {("qwen2.5o", "vision"): "qwen2.5vl_merger", ("qwen2.5o", "audio"): "qwen2a"}  # one name for two kinds
_DEEPSTACK_KIND = "qwen3vl_merger"
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d{1,4})\.fc1\.weight")


# The tensor of each kind that has the width of the embeddings, and on which axis in ggml's order.
_WIDTHS = {
    **dict.fromkeys(("pixtral", "lightonocr", "dots_ocr", "dots3note_v", "lfm2", "kimivl"), ("mm.2.weight", 1)),
    **dict.fromkeys(("mlp", "phi4", "paddleocr", "yasa2", "deepseek4v", "muse-glimmer"), ("mm.2.weight", 1)),
    **dict.fromkeys(("kimik25", "mimovl"), ("mm.2.weight", 1)),
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl"), ("mm.2.bias", 0)),
    **dict.fromkeys(("exaone4_5", "youtuvl"), ("mm.2.bias", 0)),
    "janus_pro": ("mm.1.bias", 0),
    **dict.fromkeys(("gemma3", "gemma3nv"), ("mm.input_projection.weight", 0)),
    **dict.fromkeys(("gemma4v", "gemma4uv"), ("mm.input_projection.weight", 1)),
    **dict.fromkeys(("gemma4a", "gemma4ua"), ("mm.a.input_projection.weight", 1)),
    **dict.fromkeys(("idefics3", "llama4", "step3vl", "hunyuanvl"), ("mm.model.fc.weight", 1)),
    **dict.fromkeys(("deepseekocr", "deepseekocr2"), ("mm.model.fc.weight", 1)),
    "resampler": ("resampler.proj.weight", 0),
    "minimax_m3": ("mm.merger.fc2.bias", 0),
    **dict.fromkeys(("internvl", "nemotron_v2_vl"), ("mm.model.mlp.3.weight", 1)),
    **dict.fromkeys(("glm4v", "glm5v", "cogvlm", "minicpmv4_6"), ("mm.down.weight", 1)),
    **dict.fromkeys(("ultravox", "voxtral", "musicflamingo", "qwen3a", "mimo_audio", "glma"), ("mm.a.mlp.2.weight", 1)),
    **dict.fromkeys(("meralion", "dots3note_a", "lfm2a"), ("mm.a.mlp.3.weight", 1)),
    "qwen2a": ("mm.a.fc.weight", 1),
    "qwen3tts_gen": ("a.gen.code.out_embd.weight", 0),
    "pockettts_gen": ("a.gen.input_linear.weight", 1),
}
# Patches a side that become one token, where the file does not say.
_MERGES = {
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl", "exaone4_5", "mimovl"), 2),
    **dict.fromkeys(("glm4v", "glm5v", "youtuvl", "hunyuanvl", "paddleocr", "minimax_m3", "muse-glimmer"), 2),
    **dict.fromkeys(("gemma3", "step3vl", "minicpmv4_6"), 4),
    **dict.fromkeys(("gemma4v", "gemma4uv"), 3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One encoder of a projector: what llama.cpp calls its kind, and its sizes, 0 where the file has none. `width` is
    that of the embeddings that leave the projector, in elements. A picture is cut into patches, `n_merge` by `n_merge`
    of which become one token; sides are in pixels. Sounds become one token of `n_stacked` frames."""

    name: EncoderName
    kind: str
    n_layers: int
    n_embd: int
    n_ff: int
    width: int
    is_gated: bool = False  # its feed-forward
    n_deepstack: int = 0  # of its layers give embeddings to a layer of the model each
    image_side: int = 0
    patch_side: int = 0
    n_merge: int = 1
    max_pixels: int = 0
    longest_side: int = 0  # to which larger pictures are scaled before they are cut into tiles
    max_tiles: int = 0
    has_row_ends: bool = False  # a token of its own ends each row
    n_queries: int = 0  # tokens of a picture, whatever its size
    n_stacked: int = 1


@dataclass(frozen=True, slots=True)
class ProjectorHeader:
    """A projector by its `header`: the encoder that sees, the one that hears, and what makes sound of hidden states
    (`speech`); at least one of them. What speaks may take the sound of a voice to speak with."""

    header: Header
    vision: Encoder | None
    audio: Encoder | None
    speech: Encoder | None = None
    takes_voice: bool = False

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def sees(self) -> bool:
        return self.vision is not None

    @property
    def hears(self) -> bool:
        return self.audio is not None

    @property
    def speaks(self) -> bool:
        return self.speech is not None

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        return tuple(encoder for encoder in (self.vision, self.audio, self.speech) if encoder)

    @property
    def type_name(self) -> str:
        """The type of its weights, such as F16; empty for an unknown one."""
        return file_type_name(self.header.integer("general.file_type"))

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.header.tensors)


def read_projector(path: Path) -> ProjectorHeader:
    """Read the projector at `path`. Raises ModelFileError as `parse_projector` does, and for a damaged file."""
    return parse_projector(read_header(path))


def parse_projector(header: Header) -> ProjectorHeader:
    """Return what `header` says of a projector. Raises ModelFileError for another file, and for one that neither sees
    nor hears nor speaks."""
    path = header.path
    if header.architecture != _ARCHITECTURE and header.text("general.type") != PROJECTOR_MARK:  # their general.type too
        raise ModelFileError(f"{path.name} is not a projector.", _REMEDY)
    vision, audio, speech = (_encoder(header, name) for name in get_args(EncoderName))
    if vision is None and audio is None and speech is None:
        raise ModelFileError(f"{path.name} is a projector without a vision or audio encoder.", _REMEDY)
    takes_voice = header.text("clip.audio.projector_type") in _VOICES
    return ProjectorHeader(header, vision, audio, speech, takes_voice)


def mismatch(projector: ProjectorHeader, model: Header) -> str:
    """Return why `projector` was made for other models than `model`; empty where its embeddings have the width."""
    widths = {encoder.width for encoder in projector.encoders}
    if len(widths) > 1:
        return f"its image and audio embeddings differ in width: {' and '.join(map(str, sorted(widths)))}"
    (width,), expected = widths, input_width(model)
    if not width:
        return "it does not state the width of its embeddings"
    return "" if width == expected else f"its embeddings are {width} wide, but the model takes {expected}"


def input_width(model: Header) -> int:
    """Return how wide the embeddings are that a model takes: more than its own where several layers get some."""
    return hyperparameter(model, "embedding_length") * (1 + hyperparameter(model, "n_deepstack_layers"))


def _encoder(header: Header, name: EncoderName) -> Encoder | None:
    kind = header.text("clip.projector_type") or header.text(f"clip.{name}.projector_type")
    kind = _BY_ENCODER.get((kind, name), kind)
    if header.metadata.get(_HAS_ENCODER.get(name, f"clip.has_{name}_encoder")) is not True or kind in _VOICES:
        return None

    def size(key: str, default: int = 0) -> int:
        value = header.integer(f"clip.{name}.{key}")
        return value if value is not None and 0 <= value <= _MAX_SIZE else default

    names = {tensor.name for tensor in header.tensors}
    side, patch = size("image_size"), size("patch_size", 1) or 1
    # patches a side that become one token
    merge = max(1, size("projector.scale_factor") or size("spatial_merge_size") or _MERGES.get(kind, 1))
    if kind == "gemma4uv":  # its patches are merged by the convolution
        patch, merge = patch * merge, 1
    return Encoder(
        name=name,
        kind=kind,
        n_layers=size("block_count"),
        n_embd=size("embedding_length"),
        n_ff=size("feed_forward_length"),
        width=_width(header, kind) or size("projection_dim"),
        is_gated=any(".blk.0.ffn_gate" in each for each in names),
        n_deepstack=_n_deepstack(names) if kind == _DEEPSTACK_KIND else 0,
        image_side=min(side, _MAX_SIDE),
        patch_side=patch,
        n_merge=merge,
        max_pixels=size("image_max_pixels"),
        longest_side=size("preproc_image_size"),
        max_tiles=min(size("preproc_max_tiles"), _MAX_TILES),
        has_row_ends="v.token_embd.img_break" in names,
        n_queries=min(header.integer("clip.minicpmv_query_num") or 0, _MAX_SIDE),
        n_stacked=max(1, size("projector.stack_factor", 1)),
    )


def _n_deepstack(names: Iterable[str]) -> int:
    return len({match[1] for name in names if (match := _DEEPSTACK.fullmatch(name))})


def _width(header: Header, kind: str) -> int:
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    tensor, axis = _WIDTHS.get(kind, ("", 0))
    if kind == "mlp" and "mm.3.bias" in shapes:  # llama.cpp's MLP_NORM
        tensor, axis = "mm.3.bias", 0
    shape = shapes.get(tensor, ())
    width = shape[axis] if len(shape) > axis else 0
    return width * (1 + _n_deepstack(shapes)) if kind == _DEEPSTACK_KIND else width
