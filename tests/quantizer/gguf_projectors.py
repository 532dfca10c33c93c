"""Tiny projectors (mmproj) that libmtmd runs, written by gguf alone: those of Gemma 3, Idefics 3 and Qwen 2-VL; and the
header alone of one that hears."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import write_gguf

__all__ = ["hearing_header", "tiny_projector"]

_WIDTH, _N_FF, _N_HEADS, _N_LAYERS = 64, 128, 4, 2
_IMAGE, _PATCH, _MERGE = 56, 14, 2


def tiny_projector(
    path: Path,
    n_embd: int = 64,
    kind: str = "gemma3",
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
    file_type: gguf.LlamaFileType = gguf.LlamaFileType.ALL_F32,
    n_pixels: int = _IMAGE,
) -> Path:
    """Write a projector of `kind` (gemma3, idefics3 or qwen2vl_merger) for models of width `n_embd`: 4 tokens for a
    picture of 56 × 56 pixels, as many more for one of `n_pixels` squared.

    `edit` may add or change metadata before it is written. `file_type` is only declared: the weights are F32.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_file_type(file_type)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    sizes = {
        "image_size": n_pixels,
        "patch_size": _PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _N_FF,
        "block_count": _N_LAYERS,
        "projection_dim": n_embd,
        "attention.head_count": _N_HEADS,
        "projector.scale_factor": _MERGE,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)
    if edit is not None:
        edit(writer)
    write_gguf(writer, _tensors(n_embd, kind, n_pixels))
    return path


def hearing_header(path: Path, kind: str = "ultravox", n_embd: int = 64) -> Path:
    """Write what is read of a projector that hears before it is loaded: the fake engine loads none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_uint32("clip.audio.projection_dim", n_embd)
    write_gguf(writer, {"a.post_ln.weight": np.ones(_WIDTH, np.float32)})
    return path


def _tensors(n_embd: int, kind: str, n_pixels: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.05, shape).astype(np.float32)

    ones = np.ones(_WIDTH, np.float32)
    tensors = {
        "v.patch_embd.weight": weights(_WIDTH, 3, _PATCH, _PATCH),
        "v.patch_embd.bias": weights(_WIDTH),
        "v.position_embd.weight": weights((n_pixels // _PATCH) ** 2, _WIDTH),
        "v.post_ln.weight": ones,
        "v.post_ln.bias": weights(_WIDTH),
    }
    for layer in range(_N_LAYERS):
        block = f"v.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors |= {f"{block}{name}.weight": weights(_WIDTH, _WIDTH), f"{block}{name}.bias": weights(_WIDTH)}
        for name in ("ln1", "ln2"):
            tensors |= {f"{block}{name}.weight": ones, f"{block}{name}.bias": weights(_WIDTH)}
        tensors |= {f"{block}ffn_up.weight": weights(_N_FF, _WIDTH), f"{block}ffn_up.bias": weights(_N_FF)}
        tensors |= {f"{block}ffn_down.weight": weights(_WIDTH, _N_FF), f"{block}ffn_down.bias": weights(_WIDTH)}
    if kind == "gemma3":
        tensors |= {"mm.input_projection.weight": weights(_WIDTH, n_embd), "mm.soft_emb_norm.weight": ones}
    if kind == "idefics3":
        tensors |= {"mm.model.fc.weight": weights(n_embd, _WIDTH * _MERGE * _MERGE)}
    if kind == "qwen2vl_merger":
        del tensors["v.patch_embd.bias"], tensors["v.position_embd.weight"]
        n_merged = _WIDTH * _MERGE * _MERGE
        tensors |= {"v.patch_embd.weight.1": weights(_WIDTH, 3, _PATCH, _PATCH)}
        tensors |= {"mm.0.weight": weights(n_merged, n_merged), "mm.0.bias": weights(n_merged)}
        tensors |= {"mm.2.weight": weights(n_embd, n_merged), "mm.2.bias": weights(n_embd)}
    return tensors
