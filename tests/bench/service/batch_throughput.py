"""`localllm batch` beside 8 clients that send the same requests in the order of the file.

    uv run python -m tests.bench.service.batch_throughput [MODEL] [--documents 10] [--questions 4] [--rounds 3]

Each request is a document and a question about it; the file has the first question about each document, then the
second, as programs write it. Both ways take turns, with documents of their own each time, on one service with the
default settings. Told: tokens a second of all prompts and answers, by the clock and by the processor time of the
service and its engine, which other programs disturb less.
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
from pathlib import Path
from typing import Any

import httpx
import psutil

from quantizer.system.process import python_command
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


def processor_s(process: psutil.Process) -> float:
    family = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in family)


def measured(service: psutil.Process, work: Callable[[], int]) -> tuple[float, float]:
    """Return the tokens for each second, and for each second of processor time of the service."""
    before_s, begun_s = processor_s(service), time.monotonic()
    n_tokens = work()
    return n_tokens / (time.monotonic() - begun_s), n_tokens / (processor_s(service) - before_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = options.model or str(fetch(SMOLLM))
    with tempfile.TemporaryDirectory() as name:
        own = {"DATA_DIR": f"{name}/data", "CACHE_DIR": f"{name}/cache", "CONFIG": f"{name}/config.toml"}
        more = {"MODEL": model, "PORT": "18499", "IDLE_TUNE": "false"}
        environment = {**os.environ, **{f"LOCALLLM_{key}": value for key, value in {**own, **more}.items()}}
        command = python_command("app.cli.main", "serve", "--owned")
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            url, service = json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
            sizes = options.documents, options.questions, options.words, options.answer
            by_clients(url, requests_of("warm", 1, 1, 20))
            ratios: list[tuple[float, float]] = []
            for number in range(options.rounds):
                ways: list[tuple[str, Callable[[], int]]] = [
                    ("batch", lambda n=number: by_batch(environment, Path(name), requests_of(f"b{n}", *sizes))),
                    ("clients", lambda n=number: by_clients(url, requests_of(f"c{n}", *sizes))),
                ]
                found = {way: measured(service, work) for way, work in (ways if number % 2 else reversed(ways))}
                ratios.append(tuple(a / b for a, b in zip(found["batch"], found["clients"], strict=True)))  # type: ignore[arg-type]
                for way, (per_s, per_cpu_s) in found.items():
                    print(
                        f"round {number}: {way:8} {per_s:7.1f} tok/s, {per_cpu_s:7.1f} tok per processor second",
                        flush=True,
                    )
                print(
                    f"round {number}: {ratios[-1][0]:.2f} times by the clock, {ratios[-1][1]:.2f} by the processors",
                    flush=True,
                )
            for place, meaning in enumerate(("clock", "processors")):
                values = [pair[place] for pair in ratios]
                print(f"{meaning}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            process.stdin.close()


if __name__ == "__main__":
    main()
