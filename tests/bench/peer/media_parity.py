"""Compare answers about pictures and sounds with llama-server's, and those of all dialects with each other.

    uv run --group train python tests/bench/peer/media_parity.py llama.cpp/build/bin/llama-server FOLDER [NAME ...]

For each entry of tiny_checkpoints.py FOLDER gets a model and its projector in F32. Both servers get the same prompts
over HTTP: exits 1 where greedy texts differ, or log probabilities by more than 1e-3 of their range over the vocabulary.
Tokens that are no ASCII text are banned on both sides, for llama-server leaves out the probabilities of half a
character. Then a picture or sound goes through each dialect of ours, whose greedy texts must be equal, and equal to
llama-server's, but for half a character where the answer is cut.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import wave
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from quantizer.gguf.header import read_header
from quantizer.write.job import JobRequest, run_job
from tests.bench.peer.peer import serve_peer
from tests.bench.served import free_port, serve

NAMES = ("gemma3-seeing", "qwen25vl", "qwen3vl", "smolvlm", "lfm2-seeing", "qwen2audio")
LIMIT = 1e-3
N_TOKENS = 12
N_TOP = 20  # as many as our API gives; llama-server's are of the whole vocabulary
_N_VOCAB = 1000  # at most
_BANNED_LOGPROB = -1000.0  # and lower is that of a banned token
_N_CTX = 2048
_RATE = 16_000
_READY_TIMEOUT_S = 120.0
_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# Texts around the media, whose number is that of the gaps.
_PROMPTS = (("hello there",), ("look at ", " this"), ("one ", " two ", " three"), ("", "what?"))
_QUESTION = "What is this?"
_HALF = "\ufffd"


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its tokens, the log probabilities of the likeliest ones at each, and the prompt's length."""

    tokens: list[int]
    logprobs: list[dict[int, float]]
    n_prompt: int


def picture(seed: int, width: int = 112, height: int = 84) -> str:
    """A PNG of noise in Base64."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def sound(seed: int, length_s: float = 2.0) -> str:
    """A WAV file of noise in Base64."""
    samples = np.random.default_rng(seed).normal(0.0, 3000.0, int(_RATE * length_s)).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(samples.itemsize)
        file.setframerate(_RATE)
        file.writeframes(samples.tobytes())
    return base64.b64encode(buffer.getvalue()).decode()


def prepare(name: str, folder: Path) -> Path:
    """Make the model called `name` and its projector in `folder`, if they are not there; return the model."""
    model = folder / name / f"{name}.gguf"
    if not model.exists():
        from tests.bench.models.tiny_checkpoints import write  # needs torch

        checkpoint = folder / name / "checkpoint"
        checkpoint.mkdir(parents=True, exist_ok=True)
        write(name, checkpoint)
        (checkpoint / "chat_template.jinja").write_text(_TEMPLATE)
        request = JobRequest(str(checkpoint), "F32", str(model), 1, is_overwriting=True, projector="F32")
        for _event in run_job(request):
            pass
    return model


def projector_of(model: Path) -> Path:
    return model.with_name(f"mmproj-{model.stem}-F32.gguf")


def complete(
    http: httpx.Client, texts: Sequence[str], media: Sequence[str], banned: Sequence[int], n_top: int
) -> Answer:
    """Return the answer to `texts` with `media` between them; both servers have this route."""
    marker = http.get("/props").json()["media_marker"]
    prompt: Any = texts[0] if not media else {"prompt_string": marker.join(texts), "multimodal_data": list(media)}
    body = {
        "prompt": prompt,
        "n_predict": N_TOKENS,
        "temperature": 0,
        "samplers": ["temperature"],
        "n_probs": n_top,
        "logit_bias": [[token, False] for token in banned],
        "ignore_eos": True,
        "cache_prompt": False,
    }
    answer = http.post("/completion", json=body)
    answer.raise_for_status()
    said = answer.json()
    steps = said["completion_probabilities"]
    tops = [{top["id"]: top["logprob"] for top in step["top_logprobs"]} for step in steps]
    return Answer([step["id"] for step in steps], tops, said["tokens_evaluated"])


def banned_tokens(http: httpx.Client, n_vocab: int) -> list[int]:
    """Return the tokens whose text is empty or not ASCII."""
    texts = (http.post("/detokenize", json={"tokens": [token]}).json()["content"] for token in range(n_vocab))
    return [token for token, text in enumerate(texts) if not (text and text.isascii())]


def difference(ours: Answer, theirs: Answer) -> float:
    """Return the largest difference of log probabilities up to where the texts part, relative to their range."""
    worst = 0.0
    for index, (mine, other) in enumerate(zip(ours.logprobs, theirs.logprobs, strict=True)):
        span = max(other.values()) - min(each for each in other.values() if each > _BANNED_LOGPROB)
        worst = max([worst, *(abs(mine[token] - other[token]) / span for token in mine.keys() & other.keys())])
        if ours.tokens[index] != theirs.tokens[index]:
            break
    return worst


# The same question in each dialect; each returns the text of the answer.


def _chat(http: httpx.Client, model: str, data: str, *, is_sound: bool) -> str:
    part = (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        if is_sound
        else {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    )
    body = {"model": model, "messages": [{"role": "user", "content": [part, _text("text")]}], **_GREEDY}
    return str(_posted(http, "/v1/chat/completions", body)["choices"][0]["message"]["content"])


def _responses(http: httpx.Client, model: str, data: str, *, is_sound: bool) -> str:
    part = (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        if is_sound
        else {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    )
    content = [part, _text("input_text")]
    body = {"model": model, "input": [{"role": "user", "content": content}], "temperature": 0}
    answer = _posted(http, "/v1/responses", {**body, "max_output_tokens": N_TOKENS, "store": False})
    return "".join(part["text"] for item in answer["output"] for part in item.get("content", ()) if "text" in part)


def _anthropic(http: httpx.Client, model: str, data: str, *, is_sound: bool) -> str | None:
    if is_sound:
        return None  # this dialect has none
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, _text("text")]
    body = {"model": model, "messages": [{"role": "user", "content": content}], **_GREEDY}
    return "".join(part.get("text", "") for part in _posted(http, "/v1/messages", body)["content"])


def _ollama(http: httpx.Client, model: str, data: str, *, is_sound: bool) -> str | None:
    message = {"role": "user", "content": _QUESTION, "images": [data]}
    options = {"temperature": 0, "num_predict": N_TOKENS}
    body = {"model": model, "messages": [message], "stream": False, "options": options}
    return str(_posted(http, "/api/chat", body)["message"]["content"])


_GREEDY = {"temperature": 0, "max_tokens": N_TOKENS}
_DIALECTS: dict[str, Callable[..., str | None]] = {
    "openai": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "ollama": _ollama,
}


def _text(kind: str) -> dict[str, str]:
    return {"type": kind, "text": _QUESTION}


def _posted(http: httpx.Client, route: str, body: dict[str, Any]) -> Any:
    answer = http.post(route, json=body)
    if answer.status_code != 200:
        raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
    return answer.json()


def _wait_healthy(http: httpx.Client) -> None:
    transport = httpx.HTTPTransport(retries=10)
    with closing(httpx.Client(base_url=http.base_url, transport=transport, timeout=_READY_TIMEOUT_S)) as patient:
        while patient.get("/health").status_code != 200:
            pass


def compare(name: str, binary: Path, folder: Path) -> list[str]:
    """Print a row for each prompt of the model called `name`; return what is wrong."""
    model, wrong = prepare(name, folder), []
    is_sound = "audio" in name
    media = [(sound if is_sound else picture)(seed) for seed in (1, 2)]
    header = read_header(model)
    longer = f"{header.architecture}.context_length=int:{_N_CTX}"
    flags = ("--mmproj", str(projector_of(model)), "-fa", "off", "-c", str(4 * _N_CTX), "--override-kv", longer)
    with serve_peer(binary, model, model.parent, flags) as (url, _), httpx.Client(base_url=url, timeout=120) as http:
        _wait_healthy(http)
        banned = banned_tokens(http, http.get("/v1/models").json()["data"][0]["meta"]["n_vocab"])
        theirs = [complete(http, texts, media[: len(texts) - 1], banned, _N_VOCAB) for texts in _PROMPTS]
        their_chat = _chat(http, name, media[0], is_sound=is_sound)
    with serve(model, free_port(), ctx=str(_N_CTX), idle_tune="false") as served:
        served.http.timeout = 120
        ours = [complete(served.http, texts, media[: len(texts) - 1], banned, N_TOP) for texts in _PROMPTS]
        identifier = served.http.get("/v1/models").json()["data"][0]["id"]
        texts = {
            dialect: ask(served.http, identifier, media[0], is_sound=is_sound) for dialect, ask in _DIALECTS.items()
        }
    for prompt, mine, other in zip(_PROMPTS, ours, theirs, strict=True):
        apart, is_same = difference(mine, other), mine.tokens == other.tokens
        print(
            f"{name:14} {'<>'.join(prompt):22} {mine.n_prompt:5} tokens  {apart:.1e}  {'equal' if is_same else 'PARTS'}"
        )
        if apart > LIMIT or not is_same or mine.n_prompt != other.n_prompt:
            wrong.append(f"{name}: {prompt} {apart:.1e}, {mine.n_prompt} and {other.n_prompt} tokens")
    spoken = {text.rstrip(_HALF) for text in texts.values() if text is not None}
    print(f"{name:14} dialects: {json.dumps(sorted(spoken))}; llama-server: {json.dumps(their_chat)}")
    if spoken != {their_chat.rstrip(_HALF)}:
        wrong.append(f"{name}: {texts}, llama-server {their_chat!r}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    wrong = [line for name in options.names for line in compare(name, options.binary, options.folder)]
    print("\n".join(wrong) or "all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
