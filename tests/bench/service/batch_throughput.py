"""`localllm batch` beside 8 clients that send the same requests in the order of the file.

    uv run python -m tests.bench.service.batch_throughput [MODEL] [--documents 10] [--questions 4] [--rounds 3]

Each request is a document and a question about it; the file has the first question about each document, then the
second, as programs write it. The ways take turns, with documents of their own each time, on one service with the
default settings. Told: tokens of all prompts and answers a second, and for each second that processors computed in the
worker, and in worker and service, which other programs disturb less. `--at-once 8 16 32` compares sizes of a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from quantizer.system.process import python_command
from tests.bench.served import Served, free_port, serve
from tests.real.packages import SMOLLM, fetch

N_CLIENTS = 8
WORDS = "river market engine garden winter letter bridge copper signal harbour paper silver window forest summer"


def requests_of(
    salt: str, n_documents: int, n_questions: int, n_words: int, n_answer: int = 16
) -> list[dict[str, Any]]:
    """Return the bodies in the order of the file; another `salt` has other documents."""
    chance, words = random.Random(salt), WORDS.split()
    documents = [
        f"Document {salt}-{number}. " + " ".join(chance.choices(words, k=n_words)) for number in range(n_documents)
    ]
    return [
        {
            "messages": [
                {"role": "system", "content": document},
                {"role": "user", "content": f"Question {question}: which word number {question + 3} is there?"},
            ],
            "max_tokens": n_answer,
            "temperature": 0,
            "ignore_eos": True,
        }
        for question in range(n_questions)
        for document in documents
    ]


def by_clients(url: str, bodies: list[dict[str, Any]]) -> int:
    """Return the tokens of all answers to 8 clients."""

    async def ask_all() -> int:
        waiting, n_tokens = iter(bodies), 0
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=None) as http:

            async def client() -> None:
                nonlocal n_tokens
                for body in waiting:
                    answer = await http.post("/v1/chat/completions", json=body)
                    n_tokens += answer.raise_for_status().json()["usage"]["total_tokens"]

            await asyncio.gather(*(client() for _ in range(N_CLIENTS)))
        return n_tokens

    return asyncio.run(ask_all())


def by_batch(environment: dict[str, str], folder: Path, bodies: list[dict[str, Any]], n_at_once: int = 0) -> int:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    path = folder / f"{time.monotonic_ns()}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        python_command("app.cli.main", "batch", str(path), "--json", f"--at-once={n_at_once}"),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    return int(summary["prompt_tokens"] + summary["output_tokens"])


@dataclass(frozen=True, slots=True)
class Measured:
    """What a way took for its `n_tokens`, of prompts and answers: by the clock, and of the processors."""

    n_tokens: int
    seconds: float
    worker_s: float
    service_s: float

    def rates(self) -> tuple[float, float, float]:
        """Tokens a second, for each second of the worker, and for each of worker and service."""
        return (
            self.n_tokens / self.seconds,
            self.n_tokens / self.worker_s,
            self.n_tokens / (self.worker_s + self.service_s),
        )


def measured(served: Served, work: Callable[[], int]) -> Measured:
    def processor_s(process: psutil.Process) -> float:
        return sum(process.cpu_times()[:2])

    worker = served.worker
    worker_s, service_s, begun_s = processor_s(worker), processor_s(served.process), time.monotonic()
    n_tokens = work()
    seconds = time.monotonic() - begun_s
    return Measured(n_tokens, seconds, processor_s(worker) - worker_s, processor_s(served.process) - service_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--words", type=int, default=300, help="of each document")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer")
    parser.add_argument(
        "--at-once", type=int, nargs="+", default=[0], help="requests at once; 0: as the command chooses"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = Path(options.model) if options.model else fetch(SMOLLM)
    sizes = options.documents, options.questions, options.words, options.answer
    found: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        own = {"DATA_DIR": f"{name}/data", "CACHE_DIR": f"{name}/cache", "CONFIG": f"{name}/config.toml"}
        more = {"MODEL": str(model), "PORT": str(free_port()), "IDLE_TUNE": "false"}
        told = {**own, **more}
        environment = {**os.environ, **{f"LOCALLLM_{key}": value for key, value in told.items()}}
        with serve(model, int(more["PORT"]), **own, IDLE_TUNE="false") as served:
            url = str(served.http.base_url)
            by_clients(url, requests_of("warm", 1, 1, 20))
            for number in range(options.rounds):
                ways = {f"{N_CLIENTS} clients": partial(by_clients, url, requests_of(f"c{number}", *sizes))}
                for n_at_once in options.at_once:
                    bodies = requests_of(f"b{number}-{n_at_once}", *sizes)
                    ways[f"batch of {n_at_once or 'slots'}"] = partial(
                        by_batch, environment, Path(name), bodies, n_at_once
                    )
                for way, work in ways.items() if number % 2 else reversed(ways.items()):
                    found.setdefault(way, []).append(measured(served, work))
                    print(f"round {number}: {way:16} {found[way][-1]}", flush=True)
    clients = found[f"{N_CLIENTS} clients"]
    print("way: tokens; tok/s; tok for each second of the worker, of worker and service (times the clients', medians)")
    for way, runs in found.items():
        cells = []
        for place in range(3):
            rates = [run.rates()[place] for run in runs]
            ratios = [rate / other.rates()[place] for rate, other in zip(rates, clients, strict=True)]
            cells.append(f"{statistics.median(rates):.1f} ({statistics.median(ratios):.2f})")
        print(f"{way:16} {runs[0].n_tokens}; {'; '.join(cells)}")


if __name__ == "__main__":
    main()
