"""Compare transcripts with those of llama-server's /v1/audio/transcriptions.

    python -m tests.bench.peer.transcript_parity llama.cpp/build/bin/llama-server FOLDER

Twenty sounds of espeak-ng (Debian's package), in ten languages and many speeds, go to tiny models of random weights
that are made in FOLDER: exits 1 where a prompt has another length, or a text differs elsewhere than at a tie. Qwen3-ASR
is asked in its own way here, which llama-server's route does not know: its chat gets the same message. All answers are
greedy, and short.
"""

from __future__ import annotations

import argparse
import base64
import io
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from app.common.common_prefix import common_prefix
from app.engine.media.sound_windows import decoded_blocks, wav_of
from app.service.generation.sound_reader import SAMPLE_RATE
from quantizer.gguf.header import read_header
from quantizer.write.job import JobRequest, run_job
from tests.bench.peer.peer import serve_peer
from tests.bench.served import free_port, serve
from tests.quantizer.seeing_checkpoints import write_seeing

MODELS = ("qwen2audio", "audioflamingo3", "qwen3omni", "qwen3asr")
_ASKED_OTHERWISE = "qwen3asr"
N_TOKENS = 24
TIE = 0.05  # of log probabilities: the servers add in another order
_N_CTX = 2048
_READY_S = 120.0
_HALF = "\ufffd"  # of bytes that are no character: how many of them make one, the servers see differently
_TEXTS = {
    "en": "The quick brown fox jumps over the lazy dog, and nobody knows why.",
    "de": "Wir treffen uns morgen um halb acht am Bahnhof.",
    "fr": "Il fait beau aujourd'hui, mais il pleuvra demain.",
    "es": "Me gustaría una mesa para dos personas, por favor.",
    "it": "La biblioteca apre alle nove e chiude alle sei.",
    "pt": "O comboio parte da linha quatro.",
    "nl": "Kunt u mij zeggen waar het museum is?",
    "pl": "Dzień dobry, jak się pan dzisiaj czuje?",
    "sv": "Det finns ingen kaffe kvar i köket.",
    "cs": "Sejdeme se zítra u starého mostu.",
}


def sounds(folder: Path) -> list[tuple[str, Path]]:
    """Make twenty sounds in `folder`: the language and the file of each."""
    made = []
    for number, (language, text) in enumerate(_TEXTS.items()):
        for words_per_minute in (120 + 10 * number, 260 - 10 * number):
            path = folder / f"{language}-{words_per_minute}.wav"
            command = ["espeak-ng", "-v", language, "-s", str(words_per_minute), "-w", str(path), text]
            subprocess.run(command, check=True)
            # At the projectors' rate: of another, llama.cpp's helper has one sample more or less at the end.
            samples = np.concatenate([*decoded_blocks(io.BytesIO(path.read_bytes()), SAMPLE_RATE)])
            path.write_bytes(wav_of(samples, SAMPLE_RATE))
            made.append((language, path))
    return made


def prepare(name: str, folder: Path) -> Path:
    """Make the model called `name` and its projector, if they are not there; return the model."""
    model = folder / name / f"{name}.gguf"
    if not model.exists():
        checkpoint = write_seeing(folder / name / "checkpoint", name)
        for _event in run_job(JobRequest(str(checkpoint), "F32", str(model), 1, is_overwriting=True, projector="F32")):
            pass
    return model


def transcript(http: httpx.Client, path: Path, **fields: Any) -> tuple[str, int]:
    """Return the text that a server's route hears in a file, and the tokens of the prompt."""
    form = {"temperature": "0", "max_tokens": str(N_TOKENS), **fields}
    answer = http.post("/v1/audio/transcriptions", files={"file": (path.name, path.read_bytes())}, data=form)
    answer.raise_for_status()
    said = answer.json()
    return said["text"].replace(_HALF, "").strip(), said["usage"]["input_tokens"]


def chat(http: httpx.Client, path: Path) -> tuple[str, int]:
    """Return what llama-server's chat answers to the sound alone."""
    sound = {"data": base64.b64encode(path.read_bytes()).decode(), "format": "wav"}
    messages = [{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": N_TOKENS})
    answer.raise_for_status()
    said = answer.json()
    return said["choices"][0]["message"]["content"].replace(_HALF, "").strip(), said["usage"]["prompt_tokens"]


def lead(http: httpx.Client, path: Path, text: str, begun: str) -> float:
    """Return by how much the likeliest token leads, in log probability, behind what is `begun` of the answer: the least
    lead, where bytes that are no character stand there."""
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(path.read_bytes()).decode()}}
    content = [{"type": "text", "text": text}, sound] if text else [sound]
    body = {"temperature": 0, "max_tokens": N_TOKENS, "logprobs": True, "top_logprobs": 2}
    answer = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **body})
    answer.raise_for_status()
    written, leads = b"", [math.inf]
    for token in answer.json()["choices"][0]["logprobs"]["content"]:
        n_before = len(written.decode("utf-8", "ignore").strip())
        written += bytes(token["bytes"] or ())
        if n_before >= len(begun):
            first, second = (each["logprob"] for each in token["top_logprobs"])
            leads.append(first - second)
        if len(written.decode("utf-8", "ignore").strip()) > len(begun):
            break
    return min(leads)


def compare(name: str, binary: Path, folder: Path, files: list[tuple[str, Path]]) -> list[str]:
    """Print how many sounds give the same text; return those that do not."""
    model = prepare(name, folder)
    longer = f"{read_header(model).architecture}.context_length=int:{_N_CTX}"
    projector = model.with_name(f"mmproj-{model.stem}-F32.gguf")
    flags = ("--mmproj", str(projector), "-fa", "off", "-c", str(_N_CTX), "-np", "1", "--override-kv", longer)
    is_chat = name == _ASKED_OTHERWISE
    with serve_peer(binary, model, model.parent, flags) as (url, _), httpx.Client(base_url=url, timeout=120) as http:
        until_s = time.monotonic() + _READY_S
        while time.monotonic() < until_s:
            try:
                if http.get("/health").status_code == httpx.codes.OK:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        theirs = [
            chat(http, path) if is_chat else transcript(http, path, language=language) for language, path in files
        ]
    with serve(model, free_port(), ctx=str(_N_CTX), idle_tune="false") as served:
        served.http.timeout = 120
        ours = [
            transcript(served.http, path, **({} if is_chat else {"language": language})) for language, path in files
        ]
        wrong, n_ties = [], 0
        for (language, path), mine, other in zip(files, ours, theirs, strict=True):
            if mine == other:
                continue
            question = "" if is_chat else f"Transcribe audio to text (language: {language})"
            leads_by = lead(served.http, path, question, common_prefix(mine[0], other[0]))
            if mine[1] == other[1] and leads_by < TIE:
                n_ties += 1
            else:
                wrong.append(f"{name} {path.name}: {mine}, llama-server {other}, a lead of {leads_by:.3f}")
    n_texts = len({text for text, _ in ours})
    n_equal = len(files) - len(wrong) - n_ties
    print(f"{name}: {n_equal} of {len(files)} equal, {n_ties} part where two tokens tie, {n_texts} different texts")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    files = sounds(options.folder)
    wrong = [line for name in MODELS for line in compare(name, options.binary, options.folder, files)]
    print("\n".join(wrong) or "all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
