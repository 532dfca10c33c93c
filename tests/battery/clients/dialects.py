"""Whether all dialects give the same answers under load, and leave nothing behind: sixteen clients, mixed dialects.

Run: `uv run python tests/battery/clients/dialects.py MODEL.gguf [--seconds 300]`. Greedy answers to a fixed set of
questions are computed alone first; clients then use a random dialect each time, whole or streamed, and one in five
hangs up in mid-answer. No answer may differ (alone.py has the rule); at the end no cells are in use and no file is open
that was not open before. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.table import Table

from app.bench.workloads import RandomText
from app.engine.llama import LlamaModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.battery.clients.soak import Job
from tests.bench.alone import Alone, Match, compare_text
from tests.bench.report import show
from tests.bench.served import Served, footprint, n_answered_in_all_cells, serve

__all__ = ["DIALECTS", "Dialect"]

N_CLIENTS = 16
N_JOBS = 32
HANG_UP_SHARE = 0.2
_N_CTX, _N_TOKENS = 512, 48
_FREE_WITHIN_S = 0.25


@dataclass(frozen=True, slots=True)
class Dialect:
    """The path of a dialect, its body for a message, and the text of an answer: `whole`, or a `part` in one event."""

    path: str
    body: Callable[[str], dict[str, Any]]
    whole: Callable[[Any], str]
    part: Callable[[Any], str]


def _chat(message: str, **limit: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": message}], "temperature": 0, **limit}


def _openai(path: str) -> Dialect:
    return Dialect(
        path,
        lambda message: _chat(message, max_tokens=_N_TOKENS),
        lambda reply: reply["choices"][0]["message"]["content"],
        lambda reply: reply["choices"][0]["delta"].get("content") or "",
    )


DIALECTS: Mapping[str, Dialect] = {
    "openai": _openai("/v1/chat/completions"),
    "lmstudio": _openai("/api/v0/chat/completions"),
    "responses": Dialect(
        "/v1/responses",
        lambda message: {"input": message, "temperature": 0, "max_output_tokens": _N_TOKENS},
        lambda reply: "".join(part["text"] for item in reply["output"] for part in item["content"]),
        lambda reply: reply["delta"] if reply["type"] == "response.output_text.delta" else "",
    ),
    "anthropic": Dialect(
        "/v1/messages",
        lambda message: _chat(message, max_tokens=_N_TOKENS),
        lambda reply: "".join(block["text"] for block in reply["content"]),
        lambda reply: reply["delta"]["text"] if reply["type"] == "content_block_delta" else "",
    ),
    "ollama": Dialect(
        "/api/chat",
        lambda message: _chat(message, options={"temperature": 0, "num_predict": _N_TOKENS}),
        lambda reply: reply["message"]["content"],
        lambda reply: reply["message"]["content"],
    ),
}


def known_jobs(path: Path, served: Served, seed: int) -> list[Job]:
    """Return questions with their answers by the model at `path`, alone."""
    validate_gguf(path)
    model = LlamaModel(path, ON_HOST, extra_buffers=False, on_progress=lambda _fraction: True)
    alone = Alone(model, _N_CTX, RuntimeSettings(1, False, False))
    chance, prose = random.Random(seed), RandomText(seed)
    jobs: list[Job] = []
    for _ in range(N_JOBS):
        message = prose.words(chance.randint(5, 40))
        prompt = served.http.post("/apply-template", json=_chat(message)).json()["prompt"]
        tokens = served.http.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
        known = alone.answer(tokens, _N_TOKENS, ignore_eos=False)
        jobs.append(Job(message, known, tuple(alone.piece(token) for token in known.tokens)))
    alone.close()
    model.close()
    return jobs


async def _request(http: httpx.AsyncClient, dialect: Dialect, message: str, chance: random.Random) -> str | None:
    """Return the text of the answer, None if the client hung up."""
    body = dialect.body(message)
    if chance.random() < 0.5:
        return dialect.whole((await http.post(dialect.path, json={**body, "stream": False})).raise_for_status().json())
    n_most = chance.randint(1, 10) if chance.random() < 2 * HANG_UP_SHARE else None
    parts: list[str] = []
    async with http.stream("POST", dialect.path, json={**body, "stream": True}) as response:
        async for line in response.raise_for_status().aiter_lines():
            data = line.removeprefix("data: ")
            if data.startswith("{"):
                parts.append(dialect.part(json.loads(data)))
            if n_most is not None and len(parts) >= n_most:
                return None
    return "".join(parts)


async def _client(
    http: httpx.AsyncClient, jobs: Sequence[Job], seen: Counter[tuple[str, str]], chance: random.Random, until_s: float
) -> None:
    while time.perf_counter() < until_s:
        name, job = chance.choice(list(DIALECTS)), chance.choice(jobs)
        text = await _request(http, DIALECTS[name], job.prompt, chance)
        match = "left" if text is None else compare_text(text, job.pieces, job.known)[0].value
        seen[name, match] += 1


async def _load(served: Served, jobs: Sequence[Job], seconds: float, seed: int) -> Counter[tuple[str, str]]:
    seen: Counter[tuple[str, str]] = Counter()
    until_s = time.perf_counter() + seconds
    limits = httpx.Limits(max_connections=N_CLIENTS)
    url = f"http://127.0.0.1:{served.port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=limits) as http:
        clients = [_client(http, jobs, seen, random.Random(seed + index), until_s) for index in range(N_CLIENTS)]
        await asyncio.gather(*clients)
    return seen


def _n_leaked(served: Served, n_before: int) -> tuple[int, int]:
    """Return how many answers still hold cells after a quarter second, and how many more files are open than before."""
    time.sleep(_FREE_WITHIN_S)
    n_held = served.n_in_engine()
    deadline_s = time.monotonic() + 5.0
    while (n_more := footprint(served.process).n_handles - n_before) > 0 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return n_held, n_more


def table(seen: Counter[tuple[str, str]]) -> Table:
    matches = [*(match.value for match in Match), "left"]
    made = Table("dialect", *matches, box=None, pad_edge=False)
    for name in DIALECTS:
        made.add_row(name, *(str(seen[name, match]) for match in matches))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    options = parser.parse_args()
    flags = ("--ctx", str(_N_CTX), "--parallel", "8", "--threads", str(options.threads))
    with serve(options.model, options.port, *flags) as served:
        jobs = known_jobs(options.model, served, options.seed)
        asyncio.run(_load(served, jobs, 3.0, options.seed))  # opens what stays open
        n_before = footprint(served.process).n_handles
        seen = asyncio.run(_load(served, jobs, options.seconds, options.seed))
        n_held, n_more = _n_leaked(served, n_before)
        n_answered = n_answered_in_all_cells(served, 8)
    show(table(seen))
    n_wrong = sum(count for (_, match), count in seen.items() if match == Match.BEYOND.value)
    print(f"wrong {n_wrong}, answers held {n_held}, files more {n_more}, answered in all cells {n_answered} of 8")
    sys.exit(1 if n_wrong or n_held or n_more > 0 or n_answered < 8 else 0)


if __name__ == "__main__":
    main()
