"""Whether a service stays correct and small under load: eight clients for two minutes, each answer known beforehand.

Run: `uv run python tests/bench/soak.py MODEL.gguf [--seconds 120]`. Greedy answers to a fixed set of prompts, some of
which continue others, are computed alone first; clients then draw from the set as fast as they are served. No answer
may differ (alone.py has the rule), and after a warm-up the memory of service and worker may grow by 1 MiB a minute.
Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.table import Table

from app.bench.client import BenchClient
from app.bench.workloads import RandomText
from app.engine.llama import LlamaModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.alone import Alone, Match, ReferenceAnswer, compare_text
from tests.bench.report import show
from tests.bench.served import Served, n_answered_in_all_cells, serve
from tests.bench.tally import finish

__all__ = ["Job", "Watch", "known_jobs"]

N_CLIENTS = 8
N_JOBS = 48
MAX_SLOPE_MIB = 1.0  # a minute
WARM_UP_SHARE = 0.25
_N_CTX, _N_TOKENS, _N_SYSTEM_WORDS, _N_BEGIN_CHARACTERS = 512, 48, 80, 800
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and its reference answer, token by token."""

    prompt: str
    known: ReferenceAnswer
    pieces: tuple[bytes, ...]


@dataclass(slots=True)
class Watch:
    """The results of the run: matches, and (seconds, bytes) of each process."""

    matches: Counter[Match] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    n_tokens: int = 0
    sizes: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: {"service": [], "worker": []})

    def slope_mib(self, name: str) -> float:
        """Return by how many MiB a minute a process grows after the warm-up: the least-squares line."""
        seconds, sizes = np.array(self.sizes[name], np.float64).T
        is_warm = seconds >= WARM_UP_SHARE * seconds[-1]
        per_second, _ = np.polyfit(seconds[is_warm], sizes[is_warm], 1)
        return float(60 * per_second / _MIB)


def known_jobs(path: Path, seed: int) -> list[Job]:
    """Return prompts with a shared begin, new ones and next turns, with their answers by the model at `path`."""
    validate_gguf(path)
    model = LlamaModel(path, ON_HOST, extra_buffers=False, on_progress=lambda _fraction: True)
    alone = Alone(model, _N_CTX, RuntimeSettings(1, False, False))
    chance, prose = random.Random(seed), RandomText(seed)
    system = prose.words(_N_SYSTEM_WORDS)
    jobs: list[Job] = []
    for _ in range(N_JOBS):
        begin = chance.choice(("", system, chance.choice(jobs).prompt if jobs else system))
        prompt = begin[-_N_BEGIN_CHARACTERS:] + prose.words(chance.randint(5, 40))
        known = alone.answer(alone.tokenize(prompt, add_special=True), _N_TOKENS, ignore_eos=True)
        jobs.append(Job(prompt, known, tuple(alone.piece(token) for token in known.tokens)))
    alone.close()
    model.close()
    return jobs


async def _client(served: Served, jobs: Sequence[Job], watch: Watch, chance: random.Random, until_s: float) -> None:
    async with BenchClient(f"http://127.0.0.1:{served.port}") as client:
        while time.perf_counter() < until_s:
            job = chance.choice(jobs)
            answer = await client.complete(job.prompt, _N_TOKENS, temperature=0.0, ignore_eos=True)
            watch.n_tokens += answer.n_output
            match, n_same = compare_text(answer.text, job.pieces, job.known)
            watch.matches[match] += 1
            if match is Match.BEYOND:
                watch.wrong.append(f"{job.prompt[-40:]!r}: {answer.text!r} parts at token {n_same}")


async def _weigh(served: Served, watch: Watch, until_s: float) -> None:
    processes = {"service": served.process, "worker": served.worker}
    begun_s = time.perf_counter()
    while (now_s := time.perf_counter()) < until_s:
        for name, process in processes.items():
            watch.sizes[name].append((now_s - begun_s, process.memory_info().rss))
        await asyncio.sleep(1.0)


async def _soak(served: Served, jobs: Sequence[Job], seconds: float, seed: int) -> Watch:
    watch, until_s = Watch(), time.perf_counter() + seconds
    clients = [_client(served, jobs, watch, random.Random(seed + index), until_s) for index in range(N_CLIENTS)]
    await asyncio.gather(_weigh(served, watch, until_s), *clients)
    return watch


def table(watch: Watch) -> Table:
    made = Table("what", "seen", "", box=None, pad_edge=False)
    made.add_row("tokens", str(watch.n_tokens), "")
    for match in Match:
        is_wrong = match is Match.BEYOND and watch.matches[match]
        made.add_row(f"answers: {match.value}", str(watch.matches[match]), "WRONG" if is_wrong else "")
    for name, sizes in watch.sizes.items():
        slope = watch.slope_mib(name)
        seen = f"{slope:+.2f} MiB a minute, {sizes[-1][1] / _MIB:.0f} MiB at the end"
        made.add_row(f"{name}: resident memory", seen, "WRONG" if slope > MAX_SLOPE_MIB else "")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    options = parser.parse_args()
    jobs = known_jobs(options.model, options.seed)
    with serve(options.model, options.port, "--ctx", str(_N_CTX), "--threads", str(options.threads)) as served:
        n_answered_in_all_cells(served, N_CLIENTS)  # touches all memory that the KV cache and its graphs ever need
        watch = asyncio.run(_soak(served, jobs, options.seconds, options.seed))
    show(table(watch))
    for line in watch.wrong:
        print(line)
    n_growing = sum(watch.slope_mib(name) > MAX_SLOPE_MIB for name in watch.sizes)
    finish(watch.matches.total(), len(watch.wrong) + n_growing, options.seed)


if __name__ == "__main__":
    main()
