"""Models loaded beside a model: a draft model, adapters, a projector, a prediction layer. Pure.

Of a projector also the compute buffer that libmtmd reserves at a load for its trial picture or sound
(tests/bench/plans/compare_projectors.py compares it with what is taken), and the tokens of a picture or a sound, by
formulas for each kind of encoder. Source: `load_hparams`, `clip_n_output_tokens`, `build_vit` and models/ in tools/mtmd
of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.projector_header import Encoder, ProjectorHeader, input_width

PIXEL_BYTES = 3 * 4096 * 4096  # of the largest picture that is decoded, in RGB
_TYPICAL_PIXELS = 1024 * 1024
_WHISPER_FRAMES = 1500  # of 30 seconds, after two convolutions
_MEL_FRAMES = 3000  # of 30 seconds


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """Tokens of a picture of 1024 × 1024 pixels, and the most that any picture takes."""

    typical: int
    most: int


def picture_tokens(encoder: Encoder) -> PictureTokens:
    """Return the tokens of pictures, marks around them and between tiles not counted."""
    tile = encoder.n_queries or _n_patches(encoder, encoder.image_side) // encoder.n_merge**2
    if encoder.kind in _POOLED:
        return PictureTokens(_POOLED[encoder.kind], _POOLED[encoder.kind])
    if encoder.kind in _MOST_TOKENS or encoder.max_pixels:
        side = encoder.patch_side * encoder.n_merge
        most = encoder.max_pixels // side**2 or _MOST_TOKENS.get(encoder.kind, 0)
        typical = min(most, math.isqrt(_TYPICAL_PIXELS) // side * (math.isqrt(_TYPICAL_PIXELS) // side))
        rows = math.isqrt(typical) if encoder.has_row_ends else 0
        return PictureTokens(typical + rows, most + (math.isqrt(most) if encoder.has_row_ends else 0))
    n_tiles = _n_tiles(encoder)
    return PictureTokens(tile * n_tiles.typical, tile * n_tiles.most)


def sound_tokens(encoder: Encoder) -> int:
    """Return the tokens of 30 seconds."""
    return max(1, int(_MEL_FRAMES / _FRAMES_PER_TOKEN.get(encoder.kind, 8.0) / encoder.n_stacked))


def min_ubatch(projector: ProjectorHeader, model_width: int) -> int:
    """Return the smallest micro-batch, in tokens, that takes a picture whole for a model of `model_width`; 0 where it
    may be computed in parts."""
    # Pictures whose tokens attend to those behind them are computed at once; projectors that choose their size scale
    # them down to the micro-batch, of which the figure here is enough for what they usually make.
    encoder = projector.vision
    if encoder is None or (encoder.kind == "gemma4v" and model_width in _CAUSAL_GEMMA_4):
        return 0
    if encoder.kind == "gemma3":
        return picture_tokens(encoder).most
    return _WHOLE.get(encoder.kind, 0)


def projector_compute_bytes(projector: ProjectorHeader) -> int:
    # libmtmd reserves buffers for a trial picture or sound when it loads a projector; with fused attention
    return sum(map(_compute_bytes, projector.encoders))


_WHOLE = {"gemma4v": 280, "gemma4uv": 280, "deepseek4v": 512}  # a usual picture of those that attend both ways
_CAUSAL_GEMMA_4 = (1536, 2560)  # the widths of E2B and E4B, which read pictures as they read text
# What decodes generated sound: the widest layers over a window, 72 frames of 1,920 samples for Qwen3-TTS and 8 for
# Pocket-TTS, with the columns of their convolutions. In the published shape of Qwen3-TTS 0.6B 790 MB of memory were
# taken (random weights); that of Pocket-TTS is computed from its shape.
_SPEECH_BYTES = {"qwen3tts_gen": 800 << 20, "pockettts_gen": 64 << 20}
_POOLED = {"gemma3nv": 256, "yasa2": 64}  # tokens of a picture, whatever its size

# The most tokens of a picture of any size.
_MOST_TOKENS = {
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl", "glm4v", "kimik25"), 4096),
    **dict.fromkeys(("muse-glimmer", "glm5v"), 4096),
    **dict.fromkeys(("pixtral", "kimivl"), 1024),
    **dict.fromkeys(("gemma4v", "gemma4uv"), 1120),
    "lfm2": 256,
    "minimax_m3": 576,
    "hunyuanvl": 16_384,
    "youtuvl": 62_500,
    "deepseek4v": 384,
}

# Tokens a side of the trial picture; others get one as large as their tiles.
_TRIAL_SIDES = {
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl", "glm4v", "glm5v"), 46),
    **dict.fromkeys(("exaone4_5", "mimovl", "dots_ocr", "dots3note_v"), 46),
    **dict.fromkeys(("pixtral", "lightonocr", "kimivl", "gemma4v", "gemma4uv", "phi4", "minimax_m3", "lfm2"), 16),
    **dict.fromkeys(("youtuvl", "deepseek4v"), 16),
    "paddleocr": 28,
    "muse-glimmer": 32,
    "hunyuanvl": 32,
    "kimik25": 64,
}

# Frames of 10 ms that become one token, before they are stacked.
_FRAMES_PER_TOKEN = {
    **dict.fromkeys(("ultravox", "voxtral", "glma", "meralion"), 2.0),
    **dict.fromkeys(("qwen2a", "musicflamingo"), 4.0),
    "qwen3a": 100 / 13,
    "gemma4a": 4.0,
    "gemma4ua": 4.0,
    "mimo_audio": 16.0,
}


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements of the largest moment of an encoder, for each patch. `embd` counts its width and `ff` that of its
    feed-forward; fewer than `least_embd` widths it never is. `n_positions` are held beside them, and the pixels where
    it `keeps_pixels`."""

    embd: float
    ff: float
    least_embd: float
    n_positions: int = 0
    keeps_pixels: bool = True


# Fitted to what libmtmd reserves; attention beside two copies of keys and values, or the feed-forward, is the largest.
_LEARNED = _Elements(3, 1, 5.5, keeps_pixels=False)
_ROTARY, _ROTARY_GATED = _Elements(3.5, 1, 6, 4), _Elements(3.5, 3, 6, 2)
_ELEMENTS = {
    **dict.fromkeys(("gemma3", "idefics3", "lfm2", "internvl", "nemotron_v2_vl", "phi4", "janus_pro", "mlp"), _LEARNED),
    **dict.fromkeys(("ultravox", "voxtral", "glma", "meralion", "qwen2a", "musicflamingo", "resampler"), _LEARNED),
    "qwen2vl_merger": _Elements(2, 1, 5, 4),
    "qwen2.5vl_merger": _Elements(4, 1, 5, 4),
    "qwen3vl_merger": _Elements(2, 1, 6, 4),
    "llama4": _Elements(2, 1, 5, 2),
    "glm4v": _Elements(2, 3, 6, 4),
    "glm5v": _Elements(2, 3, 6, 4),
    "gemma4v": _Elements(2, 3, 6, 2),
    "kimivl": _Elements(3.5, 1, 6, 2),
}


def _compute_bytes(encoder: Encoder) -> int:
    if encoder.kind in _SPEECH_BYTES:
        return _SPEECH_BYTES[encoder.kind]
    side = _TRIAL_SIDES.get(encoder.kind, 0) * encoder.patch_side * encoder.n_merge or encoder.image_side
    if encoder.kind == "kimik25" and encoder.max_pixels:
        side = math.isqrt(encoder.max_pixels)
    n_patches = _WHISPER_FRAMES if encoder.name == "audio" else _n_patches(encoder, side)
    known = _ELEMENTS.get(encoder.kind, _ROTARY_GATED if encoder.is_gated else _ROTARY)
    n_embd, n_ff = encoder.n_embd, encoder.n_ff
    widths = known.embd + (encoder.kind == "gemma4v" and n_ff != 4 * n_embd)
    elements = max(widths * n_embd + known.ff * n_ff, known.least_embd * n_embd)
    if encoder.n_deepstack:  # each stays until the end
        elements = (known.least_embd + encoder.n_deepstack) * n_embd
    pixels = 3 * encoder.patch_side**2 if encoder.name == "vision" else 0
    elements += known.n_positions + (pixels if known.keeps_pixels else 0)
    total = elements * n_patches
    if encoder.kind == "qwen2.5vl_merger":  # masks of its windows, as F32 and F16
        total += 1.5 * n_patches**2
    if encoder.has_row_ends:
        total += encoder.width * _TRIAL_SIDES.get(encoder.kind, 16)
    if encoder.kind == "mlp":  # a wide model's layers may take more than the encoder
        total = max(total, (n_embd + 2 * encoder.width + pixels) * n_patches)
    return int(total) * _FLOAT_BYTES


def _n_patches(encoder: Encoder, side: int) -> int:
    return (side // encoder.patch_side) ** 2


def _n_tiles(encoder: Encoder) -> PictureTokens:
    """Return how many tiles a picture becomes, the whole picture in small among them: typical and most."""
    if encoder.kind == "internvl":
        most = encoder.max_tiles or 12
        return PictureTokens(min(most, 4) + 1, most + 1)
    if encoder.kind == "idefics3" and encoder.longest_side and encoder.image_side:
        each = -(-encoder.longest_side // encoder.image_side)
        return PictureTokens(each * each + 1, each * each + 1)
    if encoder.kind in ("resampler", "llama4"):
        return PictureTokens(5, 10)
    return PictureTokens(1, 1)


# architectures that draft from the hidden states of another model
DRAFT_HEADS = frozenset(["dflash", "eagle3", "gemma4-assistant"])
CACHELESS_HEADS = frozenset(["gemma4-assistant"])  # whose layers read the cache of that model
_FIRST_TRUNK = "blk.0.attn_norm.weight"  # by which llama.cpp tells files of prediction layers, too
_EMBEDDINGS = "token_embd.weight"
_FLOAT_BYTES = 4
HEAD_BATCH = 64  # tokens that a head computes at once: it makes logits of all, which take memory


def only_predicts(header: Header) -> bool:
    """Return whether a file has the prediction layers of a model and none of the layers before them."""
    has_layers = bool(hyperparameter(header, "nextn_predict_layers")) and header.architecture not in DRAFT_HEADS
    return has_layers and all(tensor.name != _FIRST_TRUNK for tensor in header.tensors)


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """A draft model or head: the header of its first file, the tensors of all. Its context is the model's."""

    name: str
    header: Header
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class PlannedAdapter:
    """A LoRA adapter: each of its tensors lies beside the weight that it changes, whose name it begins with."""

    name: str
    tensors: tuple[TensorInfo, ...]

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProjector:
    """A projector of pictures or sounds into tokens, or of hidden states into speech: its weights, the compute buffers
    of its trial picture or sound, and `host_bytes` of pixels and embeddings, which are the processor's.

    `excess_bytes` are what its last load took beyond that. It lies on the device of the output, or `is_on_host`.
    A picture takes `picture` tokens (None: it sees nothing) and must fit a micro-batch of `min_ubatch`; 30 seconds of
    sound take `n_sound_tokens` (0: it hears nothing).
    """

    name: str
    n_bytes: int
    compute_bytes: int = 0
    host_bytes: int = 0
    excess_bytes: int = 0
    is_on_host: bool = False
    picture: PictureTokens | None = None
    n_sound_tokens: int = 0
    min_ubatch: int = 0

    @property
    def tokens_text(self) -> str:
        """What a picture and a sound take of the context, as a sentence."""
        parts = []
        if self.picture is not None:
            most = f" (at most {self.picture.most:,})" if self.picture.most != self.picture.typical else ""
            about = "about " if most else ""
            parts.append(f"a picture into {about}{self.picture.typical:,} tokens{most}")
        if self.n_sound_tokens:
            parts.append(f"30 seconds of sound into about {self.n_sound_tokens:,} tokens")
        return f"It turns {' and '.join(parts)}." if parts else ""

    @classmethod
    def of(cls, projector: ProjectorHeader, model: Header) -> PlannedProjector:
        """Return what `projector` takes beside `model`."""
        picture = picture_tokens(projector.vision) if projector.vision else None
        n_sound_tokens = sound_tokens(projector.audio) if projector.audio else 0
        width = input_width(model)
        host_bytes = PIXEL_BYTES + max(picture.most if picture else 0, n_sound_tokens) * width * _FLOAT_BYTES
        if projector.speaks:  # libmtmd makes prompts of a copy of the embeddings in single precision
            embeddings = next((tensor for tensor in model.tensors if tensor.name == _EMBEDDINGS), None)
            host_bytes = math.prod(embeddings.shape) * _FLOAT_BYTES if embeddings else 0
        return cls(
            name=projector.path.name,
            n_bytes=projector.n_bytes,
            compute_bytes=projector_compute_bytes(projector),
            host_bytes=host_bytes,
            picture=picture,
            n_sound_tokens=n_sound_tokens,
            min_ubatch=min_ubatch(projector, width),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryModels:
    """All models loaded beside a model. Where it `has_mtp_layer`, its prediction layers too follow every token."""

    draft: PlannedDraft | None = None
    adapters: tuple[PlannedAdapter, ...] = ()
    projector: PlannedProjector | None = None
    has_mtp_layer: bool = False

    @property
    def adapter_tensors(self) -> Sequence[TensorInfo]:
        return [tensor for adapter in self.adapters for tensor in adapter.tensors]


NO_AUXILIARY_MODELS = AuxiliaryModels()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryUsage:
    """Bytes of one auxiliary model, by purpose. All lie on the device of the output, but for `host_bytes`, which are
    the processor's, and for the weights and the cache of what `is_in_layers`: those lie among the layers of the model.
    A GPU holds `tied_bytes` of weights again."""

    what: str
    weight_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0
    host_bytes: int = 0
    tied_bytes: int = 0
    is_in_layers: bool = False
    projector: PlannedProjector | None = None  # if it is one

    @property
    def n_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes on the device of the output."""
        return self.compute_bytes + (0 if self.is_in_layers else self.weight_bytes + self.cache_bytes)
