"""Compare speech with that of llama.cpp's llama-tts, of the same build.

    python -m tests.bench.peer.speech_parity llama.cpp/build/bin/llama-tts FOLDER

Tiny models of seeded random weights, Qwen3-TTS and Pocket-TTS, are made in FOLDER and say sentences in a voice and
without one, greedily and at a temperature: exits 1 where a sound has another length, or a sample differs by more than
TOLERANCE. Each sentence is a request of its own to /v1/audio/speech, as llama-tts says one text.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import time
import wave
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from app.engine.speech import SpeakerFacts, max_frames
from tests.app.engine.media.files import sound_file
from tests.bench.served import free_port, serve
from tests.quantizer.gguf_speakers import SpeakerKind, tiny_speaker

KINDS: tuple[SpeakerKind, ...] = ("qwen3tts", "pockettts")
TEXTS = (
    "Hello there, how are you?",
    "The quick brown fox jumps over the lazy dog, and nobody knows why.",
    "No.",
    "Chapter 7: what the 3 of them saw (and did not tell).",
)
SAMPLINGS = ({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"temperature": 0.0})
TOLERANCE = 2  # of 32,768: the last bit, and its rounding
_SEED = 5
_FACTS = SpeakerFacts(sample_rate=24_000, frame_samples=1920)


def theirs(binary: Path, model: Path, text: str, sampling: dict[str, float], voice: Path | None) -> NDArray[np.int16]:
    output = model.with_name("theirs.wav")
    flags = ["--temp", "--top-k", "--top-p", "--min-p"]
    values = [sampling["temperature"], *(sampling.get(name, 0) for name in ("top_k", "top_p", "min_p"))]
    chosen = [word for pair in zip(flags, values, strict=True) for word in map(str, pair)]
    if not sampling["temperature"]:
        chosen = ["--temp", "0", "--top-k", "1"]
    command = [
        *(str(binary), "-m", str(model), "-mm", str(model.with_name(f"mmproj-{model.name}"))),
        *("-p", text, "-o", str(output), "--seed", str(_SEED), "-n", str(max_frames(text, _FACTS)), *chosen),
        *("-b", "64", "-fa", "off", "-c", "2048", "-t", "1"),
        *(("--tts-speaker-file", str(voice)) if voice else ()),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return samples_of(output.read_bytes())


def samples_of(data: bytes) -> NDArray[np.int16]:
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(1 << 30), np.int16)


def ours(http: httpx.Client, text: str, sampling: dict[str, float], voice: Path | None) -> NDArray[np.int16]:
    sound = f"data:audio/wav;base64,{b64encode(voice.read_bytes()).decode()}" if voice else ""
    body: dict[str, Any] = {"input": text, "voice": sound, "seed": _SEED, "response_format": "wav", **sampling}
    answer = http.post("/v1/audio/speech", json=body)
    answer.raise_for_status()
    return samples_of(answer.content)


def compare(kind: SpeakerKind, binary: Path, folder: Path) -> list[str]:
    """Print how many sounds are equal; return those that are not."""
    model, voice = tiny_speaker(folder / kind, kind), folder / "voice.wav"
    voice.write_bytes(sound_file(1.5, 24_000))
    voices = (voice,) if kind == "pockettts" else (None, voice)  # the service refuses Pocket-TTS without one
    wrong, n_equal, n_samples, largest = [], 0, 0, 0
    with serve(model, free_port(), idle_tune="false", threads="1") as served:
        served.http.timeout = 600
        for sampling in SAMPLINGS:
            for heard in voices:
                for text in TEXTS:
                    begun_s = time.monotonic()
                    mine, other = ours(served.http, text, sampling, heard), theirs(binary, model, text, sampling, heard)
                    print(f"{kind} {text[:20]!r}: {time.monotonic() - begun_s:.1f} s", file=sys.stderr)
                    n_samples += len(mine)
                    if len(mine) == len(other):
                        apart = int(np.abs(mine.astype(int) - other).max(initial=0))
                        largest = max(largest, apart)
                        if apart <= TOLERANCE:
                            n_equal += 1
                            continue
                    wrong.append(f"{kind} {sampling} {text!r}: {len(mine)} samples, llama-tts {len(other)}")
    n_all = n_equal + len(wrong)
    print(f"{kind}: {n_equal} of {n_all} sounds equal, {n_samples:,} samples, largest difference {largest} of 32,768")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    wrong = [line for kind in KINDS for line in compare(kind, options.binary, options.folder)]
    print("\n".join(wrong) or "all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
