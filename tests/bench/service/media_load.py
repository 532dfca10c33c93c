"""Pictures beside other work: answers stay right, running ones keep their pace, a chat comes back after a restart.

    uv run python tests/bench/service/media_load.py [--only load|restart] [--model MODEL.gguf] [--tokens 256]
        [--clients 8]

`load`: clients with text alone, then as many more with pictures beside them. Each answer is compared with the one that
the same request got alone; they may part where the two likeliest tokens were within 0.05. Prints the gaps between the
pieces of the text clients' answers, without pictures and beside them.

`restart`: a chat of five turns, each with a picture, goes on after the service has ended; so does the same chat with as
many tokens of text in their places, each after restarts of its own, in turns. Prints the first tokens of both, and what
was cached.

The projector is random, with as many tokens for a picture as asked for: the text is not meant to be about it.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from app.bench.workloads import RandomText
from quantizer.gguf.header import read_header
from tests.bench.served import Served, free_port, serve
from tests.quantizer.gguf_projectors import tiny_projector

GUIDE = Path(__file__).parents[3] / "assets" / "guide" / "guide-Q8_0.gguf"
NEAR_TIE = 0.05
N_TOKENS = 64
_PIXELS_PER_TOKEN = 28  # of a side
_N_PICTURES = 5
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Answered:
    """A streamed answer: its pieces, when each came, the likeliest tokens of each, and the prompt's cached tokens."""

    pieces: list[str]
    times_s: list[float]
    tops: list[list[float]]
    started_s: float
    n_cached: int
    n_prompt: int

    @property
    def first_s(self) -> float:
        return self.times_s[0] - self.started_s

    @property
    def gaps_ms(self) -> list[float]:
        return [1000 * (later - earlier) for earlier, later in pairwise(self.times_s)]


def picture(seed: int, side: int) -> str:
    """A JPEG of noise as a data URL."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=60)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def with_picture(text: str, url: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"role": "user", "content": parts}


def ask(http: httpx.Client, messages: Sequence[dict[str, Any]], n_tokens: int = N_TOKENS) -> Answered:
    """Stream a greedy answer of `n_tokens`."""
    body = {
        "model": "any",
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": n_tokens,
        "ignore_eos": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 2,
        "stream_options": {"include_usage": True},
    }
    pieces, times_s, tops, usage = [], [], [], {}
    started_s = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=body) as stream:
        if stream.status_code != 200:
            sys.exit(f"{stream.status_code}: {stream.read().decode()}")
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if entries := (choice.get("logprobs") or {}).get("content"):
                    pieces += [entry["token"] for entry in entries]
                    tops += [[top["logprob"] for top in entry["top_logprobs"]] for entry in entries]
                    times_s.append(time.perf_counter())  # short steps are sent as one
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Answered(pieces, times_s, tops, started_s, cached, usage["prompt_tokens"])


def is_right(answer: Answered, alone: Answered) -> bool:
    """Whether `answer` is that of the same request alone, or parts from it at a near tie."""
    pairs = zip(answer.pieces, alone.pieces, alone.tops, strict=False)
    parting = next((tops for mine, other, tops in pairs if mine != other), None)
    return parting is None or parting[0] - parting[1] <= NEAR_TIE


def load(served: Served, options: argparse.Namespace, side: int) -> int:
    """Print the gaps without pictures and beside them; return the number of wrong answers."""
    text = RandomText(seed=options.seed)
    talks = [[{"role": "user", "content": text.words(60)}] for _ in range(options.clients * options.requests)]
    shared = [picture(seed, side) for seed in range(options.clients)]
    looks = [
        [with_picture(text.words(12), random.Random(number).choice(shared))]
        for number in range(options.clients * options.requests)
    ]
    http = served.http
    alone = [ask(http, messages) for messages in (*talks, *looks)]
    with ThreadPoolExecutor(2 * options.clients) as pool:
        quiet = list(pool.map(lambda messages: ask(http, messages), talks[: len(talks)]))
        first = pool.map(lambda messages: ask(http, messages), _mixed(talks, looks))
        mixed = list(first)
    beside, seen = mixed[::2], mixed[1::2]
    wrong = sum(
        not is_right(*pair) for pair in zip((*quiet, *beside, *seen), (*alone[: len(talks)], *alone), strict=True)
    )
    for label, answers in (("text alone", quiet), ("text beside pictures", beside), ("pictures", seen)):
        gaps = [gap for answer in answers for gap in answer.gaps_ms]
        p50, p95 = np.percentile(gaps, 50), np.percentile(gaps, 95)
        first_s = np.percentile([answer.first_s for answer in answers], 50)
        print(f"{label:22} {len(answers):4} answers: gaps {p50:.1f} ms, p95 {p95:.1f} ms; first token {first_s:.2f} s")
    print(f"wrong answers: {wrong} of {len(quiet) + len(mixed)}")
    return wrong


def _mixed(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return [item for pair in zip(one, other, strict=True) for item in pair]


def restart(model: Path, projector: Path, options: argparse.Namespace, side: int, folder: Path) -> None:
    """Print the first token of the sixth turn of both chats after a restart."""
    text = RandomText(seed=options.seed + 1)
    questions = [text.words(20) for _ in range(_N_PICTURES + 1)]
    replies = [text.words(20) for _ in range(_N_PICTURES)]
    seen = [with_picture(question, picture(100 + index, side)) for index, question in enumerate(questions)]
    kept = {"cache_dir": str(folder / "cache"), "data_dir": str(folder / "data")}

    def chat(turns: Sequence[dict[str, Any]], n_turns: int) -> list[dict[str, Any]]:
        answers = [{"role": "assistant", "content": reply} for reply in replies]
        return [*_mixed(turns[: n_turns - 1], answers[: n_turns - 1]), turns[n_turns - 1]]

    with _served(model, projector, options, kept) as served:
        served.http.timeout = _TIMEOUT_S
        with_pictures = [ask(served.http, chat(seen, number), 8) for number in range(1, _N_PICTURES + 1)]
        words = [_text_of(served.http, text, options.tokens) for _ in range(_N_PICTURES)]
        contents = [f"{word} {question}" for word, question in zip(words, questions, strict=False)]
        told = [{"role": "user", "content": content} for content in (*contents, questions[-1])]
        seen[-1] = told[-1]
        with_text = [ask(served.http, chat(told, number), 8) for number in range(1, _N_PICTURES + 1)]
        print(f"a first turn has {with_pictures[0].n_prompt} tokens with a picture, {with_text[0].n_prompt} with text")
        time.sleep(5)  # states are saved while nothing is asked
    chats = (("pictures", seen), ("text", told))
    for label, turns in chats * options.restarts:
        with _served(model, projector, options, kept) as served:
            ask(served.http, [{"role": "user", "content": text.words(5)}], 1)  # what any first request starts
            answer = ask(served.http, chat(turns, _N_PICTURES + 1), 8)
            turns[-1] = {"role": "user", "content": text.words(20)}  # or the next time it would be cached whole
        print(f"after a restart, {label:9} {answer.first_s:6.3f} s, {answer.n_cached} of {answer.n_prompt} cached")


def _text_of(http: httpx.Client, text: RandomText, n_tokens: int) -> str:
    """Return words of about `n_tokens` tokens."""
    words = text.words(n_tokens).split()
    n_each = len(http.post("/tokenize", json={"content": " ".join(words)}).json()["tokens"]) / len(words)
    return " ".join((words * math.ceil(n_each))[: round(n_tokens / n_each)])


def _served(model: Path, projector: Path, options: argparse.Namespace, settings: dict[str, str]) -> Any:
    return serve(model, free_port(), ctx=str(options.ctx), projector=str(projector), idle_tune="false", **settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=GUIDE)
    parser.add_argument("--only", choices=("load", "restart"), default="", help="one of the two parts")
    parser.add_argument("--tokens", type=int, default=256, help="of a picture: a square number")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=6, help="of each client")
    parser.add_argument("--restarts", type=int, default=3, help="of each chat")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    side = _PIXELS_PER_TOKEN * math.isqrt(options.tokens)
    header = read_header(options.model)
    n_embd = header.integer(f"{header.architecture}.embedding_length") or 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        projector = tiny_projector(folder / "mmproj.gguf", n_embd, n_pixels=side)
        n_wrong = 0
        if options.only != "restart":
            with _served(options.model, projector, options, {}) as served:
                served.http.timeout = _TIMEOUT_S
                n_wrong = load(served, options, side)
        if options.only != "load":
            restart(options.model, projector, options, side, folder)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
