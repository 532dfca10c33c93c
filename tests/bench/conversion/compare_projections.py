"""Compare a converted projector with its checkpoint: what both make of a picture and a sound, relative to their range.

    uv run --group train python tests/bench/conversion/compare_projections.py CHECKPOINT MODEL.gguf PROJECTOR.gguf

Exits 1 above 1e-3. The picture is random and of a size that neither side changes, the sound is noise that ends in
silence, of a length that neither side continues by more of it. transformers runs in float32 here, libmtmd in a child
process with the text model of the same checkpoint, so that a fault of one does not take the other along.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantizer.gguf.header import Header, read_header

LIMIT = 1e-3
_MARKER = b"<__media__>"
_RATE = 16_000


def square(header: Header) -> tuple[int, int]:
    """The size of a picture that fills the tower: height, width."""
    n_pixels = header.integer("clip.vision.image_size") or 0
    return n_pixels, n_pixels


def whole(pixels: np.ndarray, _header: Header) -> dict[str, Any]:
    """A batch of one picture."""
    return {"pixel_values": pixels[None]}


def one_of_several(pixels: np.ndarray, _header: Header) -> dict[str, Any]:
    """A batch of one sample with one picture."""
    return {"pixel_values": pixels[None, None]}


def squares(header: Header) -> tuple[int, int]:
    """The size of a picture of 5 × 6 vectors, each of four patches, which are several windows too."""
    side = 2 * (header.integer("clip.vision.patch_size") or 0)
    return 5 * side, 6 * side


def frames(pixels: np.ndarray, header: Header) -> dict[str, Any]:
    """The patches of both frames, those of a square one after the other, and how many there are."""
    patch = header.integer("clip.vision.patch_size") or 0
    rows, columns = (n // patch for n in pixels.shape[1:])
    cut = np.stack([pixels, pixels]).reshape(1, 2, 3, rows // 2, 2, patch, columns // 2, 2, patch)
    patches = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(rows * columns, -1)
    return {"pixel_values": patches, "image_grid_thw": np.array([[1, rows, columns]])}


def many_squares(header: Header) -> tuple[int, int]:
    """The size of a picture of 8 × 10 vectors, each of a square of patches."""
    n_joined = header.integer("clip.vision.projector.scale_factor") or 0
    side = n_joined * (header.integer("clip.vision.patch_size") or 0)
    return 8 * side, 10 * side


def _cut(pixels: np.ndarray, header: Header) -> np.ndarray:
    """The patches of a picture [rows, columns, numbers], the colours of a pixel side by side."""
    patch = header.integer("clip.vision.patch_size") or 0
    rows, columns = (n // patch for n in pixels.shape[1:])
    patches: np.ndarray = pixels.reshape(3, rows, patch, columns, patch).transpose(1, 3, 2, 4, 0)
    return patches.reshape(rows, columns, -1)


def patches(pixels: np.ndarray, header: Header) -> dict[str, Any]:
    """A batch of one picture that is cut into patches, which of them count, and how many there are."""
    cut = _cut(pixels, header)
    flat = cut.reshape(1, -1, cut.shape[-1])
    shape = np.array([cut.shape[:2]])
    return {"pixel_values": flat, "pixel_attention_mask": np.ones(flat.shape[:2], int), "spatial_shapes": shape}


def counted(pixels: np.ndarray, header: Header) -> dict[str, Any]:
    """The patches of a picture, the colours of each apart, and how many there are."""
    patch = header.integer("clip.vision.patch_size") or 0
    cut = _cut(pixels, header)
    apart = cut.reshape(-1, patch, patch, 3).transpose(0, 3, 1, 2)
    return {"pixel_values": np.ascontiguousarray(apart), "image_grid_thw": np.array([[1, *cut.shape[:2]]])}


def placed(pixels: np.ndarray, header: Header) -> dict[str, Any]:
    """A batch of one picture that is cut into patches, and their columns and rows."""
    cut = _cut(pixels, header)
    rows, columns = np.indices(cut.shape[:2])
    places = np.stack([columns, rows], axis=-1).reshape(1, -1, 2)
    return {"pixel_values": cut.reshape(1, -1, cut.shape[-1]), "image_position_ids": places}


def sized(pixels: np.ndarray, _header: Header) -> dict[str, Any]:
    """A batch of one picture, and its size."""
    return {"pixel_values": pixels[None], "image_sizes": np.array([pixels.shape[1:]])}


def unchanged(vectors: np.ndarray, _model: Any, _checkpoint: Path, _header: Header) -> np.ndarray:
    """The vectors as they are."""
    return vectors


def with_breaks(vectors: np.ndarray, model: Any, checkpoint: Path, header: Header) -> np.ndarray:
    """The vectors with the embedding of [IMG_BREAK] between rows, which libmtmd puts there."""
    added = json.loads((checkpoint / "tokenizer.json").read_text())["added_tokens"]
    token = next(each["id"] for each in added if each["content"] == "[IMG_BREAK]")
    height, _ = squares(header)
    side = (header.integer("clip.vision.patch_size") or 0) * (header.integer("clip.vision.spatial_merge_size") or 0)
    rows = vectors.reshape(height // side, -1, vectors.shape[-1])
    end = model.get_input_embeddings().weight.detach().numpy()[token]
    ended = np.concatenate([rows, np.broadcast_to(end, (len(rows), 1, len(end)))], axis=1)
    joined: np.ndarray = ended.reshape(-1, vectors.shape[-1])[:-1]
    return joined


@dataclass(frozen=True)
class Picture:
    """The picture for a projector: its height and width, what transformers takes of its pixels [3, height, width], and
    what libmtmd adds to the vectors."""

    size: Callable[[Header], tuple[int, int]]
    inputs: Callable[[np.ndarray, Header], dict[str, Any]]
    added: Callable[[np.ndarray, Any, Path, Header], np.ndarray] = unchanged


# by llama.cpp's name of the projector
PICTURES = {
    "gemma3": Picture(square, whole),
    "idefics3": Picture(square, one_of_several),
    "internvl": Picture(square, whole),
    "gemma4v": Picture(many_squares, placed),
    "lightonocr": Picture(squares, sized),
    "paddleocr": Picture(squares, counted),
    "lfm2": Picture(many_squares, patches),
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "glm4v"), Picture(squares, frames)),
    "pixtral": Picture(squares, sized, with_breaks),
}


def averaged(model: Any, bands: Any) -> Any:
    """What Qwen 2-Audio, which has no function for it, makes of a spectrogram."""
    return model.model.multi_modal_projector(model.model.audio_tower(bands).last_hidden_state)


def features(model: Any, bands: Any) -> Any:
    """What others make of a spectrogram that is all sound."""
    import torch

    name = "feature_attention_mask" if "omni" in model.config.model_type else "input_features_mask"
    mask = {name: torch.ones(bands.shape[0], bands.shape[-1], dtype=torch.long)}
    return model.get_audio_features(input_features=bands, **mask).pooler_output


# llama.cpp's name of a projector -> the seconds of a sound, the samples of silence at its end that libmtmd adds itself,
# and what transformers makes of its spectrogram
SOUNDS: dict[str, tuple[int, int, Callable[[Any, Any], Any]]] = {
    "qwen2a": (30, _RATE // 4, averaged),
    "musicflamingo": (30, _RATE // 4, features),
    "qwen3a": (8, 1, features),
}


def kind(header: Header, encoder: str) -> str:
    """llama.cpp's name of one of the projectors in a file."""
    return header.text("clip.projector_type") or header.text(f"clip.{encoder}.projector_type") or ""


def encoders(header: Header) -> list[str]:
    """What a file takes: pictures, sounds or both."""
    return [name for name in ("vision", "audio") if header.metadata.get(f"clip.has_{name}_encoder")]


def picture(header: Header) -> np.ndarray:
    """A random picture for this projector: bytes [height, width, 3]."""
    size = PICTURES[kind(header, "vision")].size(header)
    return np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)


def sound(header: Header) -> np.ndarray:
    """Noise of changing loudness and colour, and half a second of silence at its end: float32 samples."""
    n_seconds, _, _ = SOUNDS[kind(header, "audio")]
    n_samples = n_seconds * _RATE
    time = np.arange(n_samples) / _RATE
    noise = np.random.default_rng(3).standard_normal(n_samples) * (0.2 + 0.15 * np.sin(3 * time))
    tones = 0.3 * np.sin(2 * np.pi * (200 + 40 * time) * time)
    return np.where(time < n_seconds - 0.5, noise + tones, 0).astype(np.float32)


def reference_projection(checkpoint: Path, header: Header, encoder: str) -> np.ndarray:
    """What transformers makes of the picture or the sound in float32: shape [tokens, width]."""
    import torch

    from tests.bench.models.tiny_checkpoints import open_model

    model = open_model(checkpoint)
    with torch.no_grad():
        return _seen(model, checkpoint, header) if encoder == "vision" else _heard(model, header)


def _seen(model: Any, checkpoint: Path, header: Header) -> np.ndarray:
    import torch

    mean, std = (np.array(header.array(f"clip.vision.image_{name}")) for name in ("mean", "std"))
    pixels = ((picture(header) / 255 - mean) / std).transpose(2, 0, 1).astype(np.float32)
    shown = PICTURES[kind(header, "vision")]
    inputs = shown.inputs(pixels, header)
    found = model.get_image_features(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return shown.added(_joined(found).numpy(), model, checkpoint, header)


def _heard(model: Any, header: Header) -> np.ndarray:
    import torch
    from transformers import WhisperFeatureExtractor

    _, _, hear = SOUNDS[kind(header, "audio")]
    extract = WhisperFeatureExtractor(feature_size=header.integer("clip.audio.num_mel_bins"))
    bands = extract(sound(header), padding="do_not_pad", sampling_rate=_RATE, return_tensors="pt").input_features
    vectors = hear(model, bands)
    vectors = vectors.reshape(-1, vectors.shape[-1])
    # a sound has nothing for the later layers that get something of a picture
    deepstack = "clip.vision.is_deepstack_layers"
    n_later = sum(header.array(deepstack)) if deepstack in header.metadata else 0
    heard: np.ndarray = torch.nn.functional.pad(vectors, (0, n_later * vectors.shape[-1])).numpy()
    return heard


def _joined(found: Any) -> Any:
    """All vectors of the picture, and beside each those that later layers of the language model get."""
    import torch

    features = found.pooler_output
    features = torch.cat(list(features)) if isinstance(features, list | tuple) else features
    later = [torch.cat(list(layer)) for layer in getattr(found, "deepstack_features", None) or ()]
    return torch.cat([features.reshape(-1, features.shape[-1]), *later], dim=-1)


def native_projection(model: Path, projector: Path, encoder: str) -> np.ndarray:
    """What libmtmd makes of the picture or the sound on the CPU, from a child process: shape [tokens, width]."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "projection.npy"
        command = [sys.executable, __file__, "--child", str(out), encoder, str(model), str(projector)]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"libmtmd ended with {done.returncode}: {done.stderr[-2000:]}")
        values: np.ndarray = np.load(out)
        return values


def largest_difference(checkpoint: Path, model: Path, projector: Path) -> float:
    """The largest difference of any number as a share of the reference's range."""
    header = read_header(projector)
    return max(_difference(checkpoint, model, projector, header, encoder) for encoder in encoders(header))


def _difference(checkpoint: Path, model: Path, projector: Path, header: Header, encoder: str) -> float:
    reference = reference_projection(checkpoint, header, encoder)
    native = native_projection(model, projector, encoder)
    if native.shape != reference.shape:
        raise SystemExit(f"libmtmd gives {native.shape}, transformers {reference.shape}")
    return float(np.abs(reference - native).max() / (reference.max() - reference.min()))


def child(model_path: Path, projector: Path, encoder: str, out: Path) -> None:
    """Encode the picture or the sound and save its vectors; of a picture that is also cut up, those of the whole."""
    from llama_cpp import llama_cpp as native
    from llama_cpp import mtmd_cpp as mtmd

    native.llama_backend_init()
    params = native.llama_model_default_params()
    params.n_gpu_layers = 0
    model = native.llama_model_load_from_file(str(model_path).encode(), params)
    settings = mtmd.mtmd_context_params_default()
    settings.use_gpu, settings.n_threads, settings.warmup = False, 1, False
    settings.flash_attn_type = 0
    context = mtmd.mtmd_init_from_file(str(projector).encode(), model, settings)
    assert context, "the projector does not load"
    header = read_header(projector)
    bitmap = (_bitmap_of_picture if encoder == "vision" else _bitmap_of_sound)(header)
    text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), False, True)
    chunks = mtmd.mtmd_input_chunks_init()
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    found = (mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks)))
    chunk = next(each for each in found if mtmd.mtmd_input_chunk_get_type(each) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT)
    assert mtmd.mtmd_encode_chunk(context, chunk) == 0
    shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), native.llama_model_n_embd_inp(model)
    np.save(out, np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(context), shape).copy())


def _bitmap_of_picture(header: Header) -> Any:
    from llama_cpp import mtmd_cpp as mtmd

    pixels = picture(header)
    data = (ctypes.c_uint8 * pixels.size).from_buffer_copy(pixels.tobytes())
    return mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], data)


def _bitmap_of_sound(header: Header) -> Any:
    from llama_cpp import mtmd_cpp as mtmd

    _, n_added, _ = SOUNDS[kind(header, "audio")]
    samples = sound(header)[:-n_added]
    return mtmd.mtmd_bitmap_init_from_audio(
        samples.size, (ctypes.c_float * samples.size).from_buffer_copy(samples.tobytes())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("checkpoint", help="a folder; of a child: vision or audio")
    parser.add_argument("model", type=Path)
    parser.add_argument("projector", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.model, arguments.projector, arguments.checkpoint, arguments.child)
        return 0
    difference = largest_difference(Path(arguments.checkpoint), arguments.model, arguments.projector)
    print(f"largest difference {difference:.2e} of the range (limit {LIMIT:.0e})")
    return int(difference > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
