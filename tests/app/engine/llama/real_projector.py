"""Lays out and encodes pictures with a real projector; run as a child, for native code may end its process.

Usage: python real_projector.py MODEL.gguf PROJECTOR.gguf < JSON {name: Base64 of a file}; prints JSON
{name: {"parts", "embeddings", "error", ...}}, where the file "one" is also "interrupted", or {"error": ...} if the
projector cannot be loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from app.common.media_formats import MediaKind, format_of
from app.engine.llama import LlamaModel, LlamaProjector, ProjectorOptions
from app.engine.llama.native import mtmd
from app.engine.media.chunks import MediaChunk
from app.engine.media.decoder_process import DecoderProcess
from app.engine.request import MediaInput
from offload.placement.load_parameters import ON_HOST
from quantizer.system.errors import EngineError, UserError


def described(part: tuple[int, ...] | MediaChunk) -> Any:
    if not isinstance(part, MediaChunk):
        return list(part)
    positions = None if part.positions is None else part.positions.tolist()
    return {
        "content_id": part.content_id,
        "n_tokens": part.n_tokens,
        "n_positions": part.n_positions,
        "is_causal": part.is_causal,
        "positions": positions,
    }


def answer(projector: LlamaProjector, base64: str) -> dict[str, Any]:
    try:
        layout = projector.layout(MediaInput("<media>", base64))
        found = [projector.encode(part) for part in layout.parts if isinstance(part, MediaChunk)]
    except UserError as error:
        return {"error": type(error).__name__, "message": str(error)}
    shapes = [list(each.shape) for each in found]
    digests = [hashlib.sha256(each.tobytes()).hexdigest() for each in found]
    return {"parts": [described(part) for part in layout.parts], "shapes": shapes, "embeddings": digests}


def difference(projector: LlamaProjector, base64: str) -> float:
    """How far pixels or samples are from those that llama.cpp's own helper decodes, at most; 0 to 255 or -1 to 1."""
    data, native = MediaInput("", base64).data, mtmd()
    buffer, options = (ctypes.c_uint8 * len(data)).from_buffer_copy(data), native.mtmd_helper_init_opt_default()
    bitmap = native.mtmd_helper_bitmap_init_from_buf(projector.pointer, buffer, len(data), False, options)
    expected = bytes(native.mtmd_bitmap_get_data(bitmap)[: native.mtmd_bitmap_get_n_bytes(bitmap)])
    if format_of(data).kind is MediaKind.SOUND:
        rate = native.mtmd_get_audio_sample_rate(projector.pointer)
        found, samples = projector._decoder.sound(data, rate).samples, np.frombuffer(expected, np.float32)
        assert abs(len(found) - len(samples)) <= 1, "a decoder may round the last sample"
        n_samples = min(len(found), len(samples))
        largest = np.abs(found[:n_samples] - samples[:n_samples]).max()
    else:
        pixels = np.frombuffer(projector._decoder.picture(data).rgb, np.uint8).astype(int)
        largest = np.abs(pixels - np.frombuffer(expected, np.uint8)).max()
    native.mtmd_bitmap_free(bitmap)
    return float(largest)


def interrupted(projector: LlamaProjector, base64: str) -> dict[str, Any]:
    """Encode until an interruption from another thread comes at the right time, and once more."""
    chunks = [part for part in projector.layout(MediaInput("", base64)).parts if isinstance(part, MediaChunk)]
    is_done = threading.Event()

    def interrupt() -> None:
        while not is_done.is_set():
            projector.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        while True:
            projector.encode(chunks[0])
    except EngineError as error:
        message = str(error)
    is_done.set()
    thread.join()
    return {"message": message, **answer(projector, base64)}


def main() -> None:
    model_path, projector_path = map(Path, sys.argv[1:])
    options = ProjectorOptions(key="projector", n_threads=2, max_tokens=4096, max_whole_tokens=512)
    with ExitStack() as owned:
        model = LlamaModel(model_path, ON_HOST, False, lambda _fraction: True)
        owned.callback(model.close)
        try:
            projector = model.projector(projector_path, options, DecoderProcess())
        except UserError as error:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            return
        owned.callback(projector.close)
        jobs = json.loads(sys.stdin.read())
        answers = {name: answer(projector, base64) for name, base64 in jobs.items()}
        if "one" in answers and "error" not in answers["one"]:
            answers["interrupted"] = interrupted(projector, jobs["one"])
        for name, found in answers.items():
            if "error" not in found and name in jobs:
                found["difference"] = difference(projector, jobs[name])
        print(json.dumps(answers))


if __name__ == "__main__":
    main()
