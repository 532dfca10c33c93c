"""Headers of published projectors, without their weights: shapes and metadata as in their config.json.

Owns tensor lists by kind (names: tools/mtmd/clip-impl.h as vendored in llama-cpp-python 0.3.36) and figures of each
projector (source: its repository on the Hugging Face hub). Matrices are F16, all else F32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantizer.gguf.header import Entry, OutputTensor, encode_entry, encode_header, file_bytes
from quantizer.gguf.tensor_types import tensor_type_named

__all__ = ["OUTLINES", "ProjectorOutline", "write_outline"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorOutline:
    """One projector; `tensors` yields those outside of layers, `more` is metadata behind `clip.vision.` or
    `clip.audio.`.

    `fused` layers have queries, keys and values in one matrix.
    """

    kind: str
    tensors: Callable[[ProjectorOutline], Shapes]
    n_embd: int
    n_ff: int
    n_layers: int
    n_heads: int
    width: int
    image: int = 0
    patch: int = 14
    hears: bool = False
    gated: bool = False
    fused: bool = False
    biased: bool = True
    rms: bool = False
    activation: str = "use_gelu"
    layer: tuple[str, ...] = ()  # more vectors of a layer
    more: Mapping[str, int] = field(default_factory=dict)


def write_outline(name: str, path: Path) -> None:
    """Write the projector as a sparse file: its weights are all zero and take no space on disk."""
    outline = OUTLINES[name]
    tensors = [_tensor(*each) for each in (*outline.tensors(outline), *_layers(outline))]
    head = encode_header(list(_entries(outline)), tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(file_bytes(head, tensors))


def _tensor(name: str, shape: tuple[int, ...]) -> OutputTensor:
    kind = "F32" if len(shape) == 1 or "position_embd" in name or name.endswith("bias") else "F16"
    return OutputTensor(name, shape, tensor_type_named(kind))


def _entries(outline: ProjectorOutline) -> Iterator[Entry]:
    modality = "audio" if outline.hears else "vision"
    yield encode_entry("general.architecture", "clip", "str")
    yield encode_entry("general.type", "mmproj", "str")
    yield encode_entry("general.file_type", 1, "u32")
    yield encode_entry("clip.projector_type", outline.kind, "str")
    yield encode_entry(f"clip.has_{modality}_encoder", True, "bool")
    if outline.activation:
        yield encode_entry(f"clip.{outline.activation}", True, "bool")
    sizes = {
        "embedding_length": outline.n_embd,
        "feed_forward_length": outline.n_ff,
        "block_count": outline.n_layers,
        "projection_dim": outline.width,
        "attention.head_count": outline.n_heads,
        **({"num_mel_bins": 128} if outline.hears else {"image_size": outline.image, "patch_size": outline.patch}),
        **outline.more,
    }
    for key, value in sizes.items():
        yield encode_entry(f"clip.{modality}.{key}", value, "u32")
    yield encode_entry(f"clip.{modality}.attention.layer_norm_epsilon", 1e-6, "f32")
    if not outline.hears:
        yield encode_entry("clip.vision.image_mean", [0.5, 0.5, 0.5], "f32[]")
        yield encode_entry("clip.vision.image_std", [0.5, 0.5, 0.5], "f32[]")


def _layers(outline: ProjectorOutline) -> Shapes:
    n_embd, n_ff = outline.n_embd, outline.n_ff
    fused, separate = {"attn_qkv": 3 * n_embd}, dict.fromkeys(("attn_q", "attn_k", "attn_v"), n_embd)
    rows = {**(fused if outline.fused else separate), "attn_out": n_embd}
    rows |= {"ffn_gate": n_ff, "ffn_up": n_ff} if outline.gated else {"ffn_up": n_ff}
    for index in range(outline.n_layers):
        block = f"{'a' if outline.hears else 'v'}.blk.{index}"
        for name, n_rows in rows.items():
            has_bias = outline.biased and not (outline.hears and name == "attn_k")  # as Whisper has them
            yield from _matrix(f"{block}.{name}", n_embd, n_rows, has_bias=has_bias)
        yield from _matrix(f"{block}.ffn_down", n_ff, n_embd, has_bias=outline.biased)
        for name in ("ln1", "ln2"):
            yield from _norm(f"{block}.{name}", n_embd, has_bias=not outline.rms)
        for name in outline.layer:
            n_elements = n_embd // outline.n_heads if name in ("attn_q_norm", "attn_k_norm") else n_embd
            yield f"{block}.{name}.weight", (n_elements,)


def _matrix(name: str, n_columns: int, n_rows: int, *, has_bias: bool = True) -> Shapes:
    yield f"{name}.weight", (n_columns, n_rows)
    if has_bias:
        yield f"{name}.bias", (n_rows,)


def _norm(name: str, n_elements: int, *, has_bias: bool = True) -> Shapes:
    yield f"{name}.weight", (n_elements,)
    if has_bias:
        yield f"{name}.bias", (n_elements,)


def _patches(outline: ProjectorOutline, *, n_positions: int = 0, has_bias: bool = True, n_frames: int = 1) -> Shapes:
    shape = (outline.patch, outline.patch, 3, outline.n_embd)
    yield "v.patch_embd.weight", shape
    if n_frames > 1:
        yield "v.patch_embd.weight.1", shape
    if has_bias:
        yield "v.patch_embd.bias", (outline.n_embd,)
    if n_positions:
        yield "v.position_embd.weight", (outline.n_embd, n_positions)


def _n_patches(outline: ProjectorOutline) -> int:
    return (outline.image // outline.patch) ** 2


def _siglip(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, n_positions=_n_patches(outline))
    yield from _norm("v.post_ln", outline.n_embd)


def _gemma3(outline: ProjectorOutline) -> Shapes:
    yield from _siglip(outline)
    yield "mm.input_projection.weight", (outline.width, outline.n_embd)
    yield "mm.soft_emb_norm.weight", (outline.n_embd,)


def _idefics3(outline: ProjectorOutline) -> Shapes:
    yield from _siglip(outline)
    yield "mm.model.fc.weight", (outline.n_embd * outline.more["projector.scale_factor"] ** 2, outline.width)


def _lfm2(outline: ProjectorOutline) -> Shapes:
    yield from _siglip(outline)
    yield from _matrix("mm.1", 4 * outline.n_embd, 2048)
    yield from _matrix("mm.2", 2048, outline.width)


def _merger(outline: ProjectorOutline, names: tuple[str, str] = ("mm.0", "mm.2")) -> Shapes:
    yield from _matrix(names[0], 4 * outline.n_embd, 4 * outline.n_embd)
    yield from _matrix(names[1], 4 * outline.n_embd, outline.width)


def _qwen2vl(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, has_bias=False, n_frames=2)
    yield from _norm("v.post_ln", outline.n_embd, has_bias=not outline.rms)
    yield from _merger(outline)


def _qwen3vl(*deepstack: int) -> Callable[[ProjectorOutline], Shapes]:
    def tensors(outline: ProjectorOutline) -> Shapes:
        yield from _patches(outline, n_positions=_n_patches(outline), n_frames=2)
        yield from _norm("v.post_ln", outline.n_embd)
        yield from _merger(outline)
        for index in deepstack:
            yield from _norm(f"v.deepstack.{index}.norm", 4 * outline.n_embd)
            yield from _merger(outline, (f"v.deepstack.{index}.fc1", f"v.deepstack.{index}.fc2"))

    return tensors


def _pixtral(outline: ProjectorOutline) -> Shapes:
    n_merge = outline.more.get("spatial_merge_size", 1)
    yield from _patches(outline, has_bias=False)
    yield "v.pre_ln.weight", (outline.n_embd,)
    for index, n_columns in ((1, outline.n_embd), (2, outline.width)):
        yield from _matrix(f"mm.{index}", n_columns, outline.width, has_bias=n_merge == 1)
    if outline.kind == "pixtral":
        yield "v.token_embd.img_break", (outline.width,)
    if n_merge > 1:
        yield "mm.input_norm.weight", (outline.n_embd,)
        yield "mm.patch_merger.weight", (outline.n_embd * n_merge**2, outline.n_embd)


def _internvl(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, n_positions=_n_patches(outline) + 1)
    yield "v.class_embd", (outline.n_embd,)
    yield from _norm("mm.model.mlp.0", 4 * outline.n_embd)
    yield from _matrix("mm.model.mlp.1", 4 * outline.n_embd, outline.width)
    yield from _matrix("mm.model.mlp.3", outline.width, outline.width)


def _llava(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, n_positions=_n_patches(outline) + 1, has_bias=False)
    yield "v.class_embd", (outline.n_embd,)
    yield from _norm("v.pre_ln", outline.n_embd)
    yield from _matrix("mm.0", outline.n_embd, outline.width)
    yield from _matrix("mm.2", outline.width, outline.width)


def _kimivl(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, n_positions=729 if outline.kind == "paddleocr" else 4096)
    yield from _norm("v.post_ln", outline.n_embd)
    yield from _norm("mm.input_norm", outline.n_embd)
    yield from _merger(outline, ("mm.1", "mm.2"))


def _gemma4(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, has_bias=False)
    yield "v.position_embd.weight", (outline.n_embd, 10_240, 2)
    yield "mm.input_projection.weight", (outline.n_embd, outline.width)


def _glm4v(outline: ProjectorOutline) -> Shapes:
    yield from _patches(outline, n_positions=576, n_frames=2)
    yield "v.norm_embd.weight", (outline.n_embd,)
    yield "v.post_ln.weight", (outline.n_embd,)
    yield "mm.down.weight", (13_696, outline.width)
    yield "mm.gate.weight", (outline.width, 13_696)
    yield "mm.up.weight", (outline.width, 13_696)
    yield "mm.model.fc.weight", (outline.width, outline.width)
    yield "mm.patch_merger.weight", (2, 2, outline.n_embd, outline.width)
    yield "mm.patch_merger.bias", (outline.width,)
    yield from _norm("mm.post_norm", outline.width)


def _llama4(outline: ProjectorOutline) -> Shapes:
    yield "v.patch_embd.weight", (3 * outline.patch**2, outline.n_embd)
    yield "v.class_embd", (outline.n_embd,)
    yield "v.position_embd.weight", (outline.n_embd, _n_patches(outline) + 1)
    for name in ("v.pre_ln", "v.post_ln"):
        yield from _norm(name, outline.n_embd)
    yield "mm.model.mlp.1.weight", (outline.n_ff, 4096)
    yield "mm.model.mlp.2.weight", (4096, 4096)
    yield "mm.model.fc.weight", (4096, outline.width)


def _whisper(outline: ProjectorOutline) -> Shapes:
    n_embd = outline.n_embd
    yield "a.position_embd.weight", (n_embd, 1500)
    for index, n_columns in ((1, 128), (2, n_embd)):
        yield f"a.conv1d.{index}.weight", (3, n_columns, n_embd)
        yield f"a.conv1d.{index}.bias", (1, n_embd)
    yield from _norm("a.post_ln", n_embd)
    if outline.kind == "qwen2a":
        yield from _matrix("mm.a.fc", n_embd, outline.width)
        return
    yield "mm.a.mlp.1.weight", (n_embd * outline.more["projector.stack_factor"], outline.width)
    yield "mm.a.mlp.2.weight", (outline.width, outline.width)


def _outline(
    kind: str, tensors: Callable[[ProjectorOutline], Shapes], sizes: tuple[int, int, int, int, int], **more: object
) -> ProjectorOutline:
    n_embd, n_ff, n_layers, n_heads, width = sizes
    return ProjectorOutline(
        kind=kind,
        tensors=tensors,
        n_embd=n_embd,
        n_ff=n_ff,
        n_layers=n_layers,
        n_heads=n_heads,
        width=width,
        **more,  # type: ignore[arg-type]
    )


_GATED: dict[str, object] = {"gated": True, "biased": False, "rms": True}
_PIXTRAL: dict[str, object] = {**_GATED, "activation": "use_silu"}
_GEMMA4: dict[str, object] = {
    **_GATED,
    "image": 224,
    "patch": 16,
    "layer": ("attn_q_norm", "attn_k_norm", "attn_post_norm", "ffn_post_norm"),
    "more": {"projector.scale_factor": 3},
}
_QWEN25: dict[str, object] = {"image": 560, "gated": True, "rms": True, "activation": "use_silu"}
_SCALE = "projector.scale_factor"

OUTLINES: dict[str, ProjectorOutline] = {
    "gemma-3-4b": _outline("gemma3", _gemma3, (1152, 4304, 27, 16, 2560), image=896, more={_SCALE: 4}),
    "gemma-3-27b": _outline("gemma3", _gemma3, (1152, 4304, 27, 16, 5376), image=896, more={_SCALE: 4}),
    "smolvlm2-256m": _outline(
        *("idefics3", _idefics3, (768, 3072, 12, 12, 576)),
        image=512,
        patch=16,
        more={_SCALE: 4, "preproc_image_size": 2048},
    ),
    "smolvlm2-2.2b": _outline(
        *("idefics3", _idefics3, (1152, 4304, 27, 16, 2048)),
        image=384,
        more={_SCALE: 3, "preproc_image_size": 1536},
    ),
    "lfm2-vl-450m": _outline("lfm2", _lfm2, (768, 3072, 12, 12, 1024), image=256, patch=16, more={_SCALE: 2}),
    "lfm2-vl-1.6b": _outline("lfm2", _lfm2, (1152, 4304, 26, 16, 2048), image=256, patch=16, more={_SCALE: 2}),
    "qwen2-vl-7b": _outline("qwen2vl_merger", _qwen2vl, (1280, 5120, 32, 16, 3584), image=560),
    "qwen2.5-vl-3b": _outline(
        "qwen2.5vl_merger", _qwen2vl, (1280, 3420, 32, 16, 2048), **_QWEN25, more={"n_wa_pattern": 8}
    ),
    "qwen2.5-vl-7b": _outline(
        "qwen2.5vl_merger", _qwen2vl, (1280, 3420, 32, 16, 3584), **_QWEN25, more={"n_wa_pattern": 8}
    ),
    "qwen3-vl-2b": _outline(
        "qwen3vl_merger", _qwen3vl(5, 11, 17), (1024, 4096, 24, 16, 2048), image=768, patch=16, fused=True
    ),
    "qwen3-vl-8b": _outline(
        "qwen3vl_merger", _qwen3vl(8, 16, 24), (1152, 4304, 27, 16, 4096), image=768, patch=16, fused=True
    ),
    "qwen3.5-4b": _outline("qwen3vl_merger", _qwen3vl(), (1024, 4096, 24, 16, 2560), image=768, patch=16, fused=True),
    "pixtral-12b": _outline("pixtral", _pixtral, (1024, 4096, 24, 16, 5120), image=1024, patch=16, **_PIXTRAL),
    "mistral-small-3.1": _outline(
        "pixtral", _pixtral, (1024, 4096, 24, 16, 5120), image=1540, **_PIXTRAL, more={"spatial_merge_size": 2}
    ),
    "lighton-ocr-1b": _outline(
        *("lightonocr", _pixtral, (1024, 4096, 24, 16, 1024)),
        image=1540,
        **_PIXTRAL,
        more={"spatial_merge_size": 2, "preproc_image_size": 1540},
    ),
    "internvl3-8b": _outline(
        "internvl", _internvl, (1024, 4096, 24, 16, 3584), image=448, layer=("ls1", "ls2"), more={_SCALE: 2}
    ),
    "llava-1.5-7b": _outline("mlp", _llava, (1024, 4096, 23, 16, 4096), image=336, activation=""),
    "kimi-vl": _outline("kimivl", _kimivl, (1152, 4304, 27, 16, 2048), image=896, more={_SCALE: 2}),
    "paddleocr-vl": _outline(
        *("paddleocr", _kimivl, (1152, 4304, 27, 16, 1024)),
        image=384,
        more={"image_min_pixels": 147_384, "image_max_pixels": 2_822_400},
    ),
    "gemma-4-e4b": _outline("gemma4v", _gemma4, (768, 3072, 16, 12, 2560), **_GEMMA4),
    "gemma-4-26b": _outline("gemma4v", _gemma4, (1152, 4304, 27, 16, 2816), **_GEMMA4),
    "glm-4.1v-9b": _outline("glm4v", _glm4v, (1536, 4096, 24, 12, 4096), image=336, fused=True, **_PIXTRAL),
    "llama-4-scout": _outline("llama4", _llama4, (1408, 5632, 34, 16, 5120), image=336, more={_SCALE: 2}),
    "voxtral-mini": _outline(
        *("voxtral", _whisper, (1280, 5120, 32, 20, 3072)),
        hears=True,
        activation="",
        more={"projector.stack_factor": 4},
    ),
    "qwen2-audio": _outline("qwen2a", _whisper, (1280, 5120, 32, 20, 3584), hears=True, activation=""),
}
