"""Whether a service stays correct and small under load: 16 clients for two minutes, each answer known beforehand.

Run: `uv run python tests/battery/clients/soak.py MODEL.gguf [--seconds 120]`. Greedy answers to a fixed set of prompts,
some of which continue others, are computed alone first; clients then draw from the set as fast as they are served, hang
up one time in ten and send what is no JSON one time in ten, which must be a 400. No answer may differ (alone.py has the
rule: a real model is best F16, for quantized weights round otherwise in batches of other sizes and in their copies, or
has a larger `--margin`). After a warm-up the memory of service and worker, beside the computed prompts that the worker
keeps as far as the plan lets it, may grow by 1 MiB a minute, and by 0.1 in a run of ten minutes or more; their files
and threads by one in two minutes. Shorter than two minutes it is all warm-up: slopes are printed,
and not judged. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import httpx
import numpy as np
from rich.table import Table

from app.bench.client import BenchClient
from app.bench.workloads import RandomText
from app.engine.llama import LlamaModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.battery.tally import finish
from tests.bench.alone import MARGIN, Alone, Match, ReferenceAnswer, compare_text
from tests.bench.report import show
from tests.bench.served import Footprint, Served, footprint, n_answered_in_all_cells, serve

__all__ = ["Job", "Watch", "known_jobs"]

N_CLIENTS = 16
HANG_UP_SHARE, SPOILT_SHARE = 0.1, 0.1
N_JOBS = 48
MAX_SLOPE_MIB, MAX_LONG_SLOPE_MIB = 1.0, 0.1  # a minute, and in a run of ten or more
MAX_COUNT_SLOPE = 0.5  # files or threads a minute: who hangs up and comes again moves their number by some
_LEAST_S, _LONG_S = 120.0, 600.0
WARM_UP_SHARE = 0.25
_N_CTX, _N_TOKENS, _N_SYSTEM_WORDS, _N_BEGIN_CHARACTERS = 512, 48, 80, 800
_MIB = 2**20
_BESIDE = " beside saved prompts"
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and its reference answer, token by token."""

    prompt: str
    known: ReferenceAnswer
    pieces: tuple[bytes, ...]


@dataclass(slots=True)
class Watch:
    """The results of the run: matches, and (seconds, footprint) of each process."""

    matches: Counter[Match] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    n_tokens: int = 0
    n_hung_up: int = 0
    n_refused: int = 0
    seen: dict[str, list[tuple[float, Footprint]]] = field(default_factory=lambda: {"service": [], "worker": []})
    saved: list[tuple[float, int]] = field(default_factory=list)  # of computed prompts, in the worker's memory

    def slopes(self) -> Iterator[Slope]:
        """Yield what each process grew by after the warm-up: the least-squares lines."""
        for name, seen in self.seen.items():
            seconds = seen[-1][0] + 2 * _LOOK_S
            most_mib = MAX_LONG_SLOPE_MIB if seconds >= _LONG_S else MAX_SLOPE_MIB if seconds >= _LEAST_S else inf
            saved = dict(self.saved) if name == "worker" else {}
            sizes = [(second, (each.rss_bytes - saved.get(second, 0)) / _MIB) for second, each in seen]
            yield Slope(f"{name}: resident memory{_BESIDE * bool(saved)}", "MiB", sizes[-1][1], _slope(sizes), most_mib)
            for kind in ("n_handles", "n_threads"):
                counts = [(second, float(getattr(each, kind))) for second, each in seen]
                most = MAX_COUNT_SLOPE if seconds >= _LEAST_S else inf
                words = "files and sockets" if kind == "n_handles" else "threads"
                yield Slope(f"{name}: {words}", "", counts[-1][1], _slope(counts), most)


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much of `unit` a minute something grew, where it ended, and by how much it may grow."""

    what: str
    unit: str
    last: float
    per_minute: float
    most: float

    @property
    def is_wrong(self) -> bool:
        return self.per_minute > self.most


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope a minute after the warm-up."""
    seconds, values = np.array(points, np.float64).T
    is_warm = seconds >= WARM_UP_SHARE * seconds[-1]
    per_second, _ = np.polyfit(seconds[is_warm], values[is_warm], 1)
    return float(60 * per_second)


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


async def _client(
    served: Served, jobs: Sequence[Job], watch: Watch, chance: random.Random, until_s: float, margin: float
) -> None:
    url = f"http://127.0.0.1:{served.port}"
    async with BenchClient(url) as client, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        while time.perf_counter() < until_s:
            job, draw = chance.choice(jobs), chance.random()
            if draw < HANG_UP_SHARE:
                await _hang_up(http, job, chance)
                watch.n_hung_up += 1
                continue
            if draw < HANG_UP_SHARE + SPOILT_SHARE:
                if fault := await _spoilt(http, job, chance):
                    watch.wrong.append(fault)
                watch.n_refused += 1
                continue
            answer = await client.complete(job.prompt, _N_TOKENS, temperature=0.0, ignore_eos=True)
            watch.n_tokens += answer.n_output
            match, n_same = compare_text(answer.text, job.pieces, job.known, margin)
            watch.matches[match] += 1
            if match is Match.BEYOND:
                apart = f", {job.known.margins[n_same]:.3f} apart" if n_same < len(job.known.margins) else ""
                watch.wrong.append(f"{job.prompt[-40:]!r}: {answer.text!r} parts at token {n_same}{apart}")


def _body(job: Job) -> dict[str, object]:
    return {"prompt": job.prompt, "max_tokens": _N_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}


async def _hang_up(http: httpx.AsyncClient, job: Job, chance: random.Random) -> None:
    """Leave after some lines of an answer."""
    n_lines = chance.randint(0, 20)
    async with http.stream("POST", "/v1/completions", json=_body(job)) as response:
        async for _ in response.aiter_lines():
            n_lines -= 1
            if n_lines < 0:
                return


async def _spoilt(http: httpx.AsyncClient, job: Job, chance: random.Random) -> str:
    """Send a body that was cut; what is wrong with the reply, or nothing."""
    whole = json.dumps(_body(job)).encode()
    reply = await http.post("/v1/completions", content=whole[: chance.randrange(1, len(whole))])
    is_refused = reply.status_code == httpx.codes.BAD_REQUEST and "error" in reply.json()
    return "" if is_refused else f"what is no JSON was answered with {reply.status_code}: {reply.text[:200]}"


async def _weigh(served: Served, watch: Watch, until_s: float) -> None:
    processes = {"service": served.process, "worker": served.worker}
    begun_s = time.perf_counter()
    while (now_s := time.perf_counter()) < until_s:
        occupancy = (await asyncio.to_thread(served.model))["occupancy"]
        watch.saved.append((now_s - begun_s, occupancy["saved_bytes"] if occupancy else 0))
        for name, process in processes.items():
            watch.seen[name].append((now_s - begun_s, footprint(process)))
        await asyncio.sleep(_LOOK_S)


async def _soak(served: Served, jobs: Sequence[Job], seconds: float, seed: int, margin: float) -> Watch:
    watch, until_s = Watch(), time.perf_counter() + seconds
    clients = [_client(served, jobs, watch, random.Random(seed + index), until_s, margin) for index in range(N_CLIENTS)]
    await asyncio.gather(_weigh(served, watch, until_s), *clients)
    return watch


def table(watch: Watch) -> Table:
    made = Table("what", "seen", "", box=None, pad_edge=False)
    made.add_row("tokens", str(watch.n_tokens), "")
    for match in Match:
        is_wrong = match is Match.BEYOND and watch.matches[match]
        made.add_row(f"answers: {match.value}", str(watch.matches[match]), "WRONG" if is_wrong else "")
    made.add_row("hung up", str(watch.n_hung_up), "")
    made.add_row("no JSON", str(watch.n_refused), "")
    for slope in watch.slopes():
        seen = f"{slope.per_minute:+.3f} {slope.unit} a minute, {slope.last:.0f} {slope.unit} at the end"
        made.add_row(slope.what, " ".join(seen.split()), "WRONG" if slope.is_wrong else "")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    parser.add_argument("--margin", type=float, default=MARGIN, help="logits within which a tie may go either way")
    options = parser.parse_args()
    jobs = known_jobs(options.model, options.seed)
    with serve(options.model, options.port, "--ctx", str(_N_CTX), "--threads", str(options.threads)) as served:
        n_answered_in_all_cells(served, N_CLIENTS)  # touches all memory that the KV cache and its graphs ever need
        watch = asyncio.run(_soak(served, jobs, options.seconds, options.seed, options.margin))
    show(table(watch))
    for line in watch.wrong:
        print(line)
    n_growing = sum(slope.is_wrong for slope in watch.slopes())
    finish(watch.matches.total() + watch.n_hung_up + watch.n_refused, len(watch.wrong) + n_growing, options.seed)


if __name__ == "__main__":
    main()
