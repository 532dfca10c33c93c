"""Do clients that hang up leave anything behind? Hundreds of them, in waves, against a real service.

Run: `uv run python tests/battery/clients/hang_up.py MODEL.gguf [--clients 500]`. Most hang up in mid-stream, some while
they still wait or their prompts are computed. After each wave service and worker may compute for 250 ms at most until
the engine holds nobody's cells, and that may take no longer than ten requests for a token, which are made beside it:
other programs slow both down alike. At the end files, threads, memory and cells must be what they were. Exits with 1
where one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from app.bench.workloads import RandomText
from tests.battery.tally import finish
from tests.bench.report import show
from tests.bench.served import Footprint, Served, footprint, n_answered_in_all_cells, serve

__all__ = ["examine", "hang_up_in_waves"]

N_PARALLEL = 16
N_CTX = 512
FREE_WITHIN_MS = 250.0  # of processor time
MAX_TWINS = 10.0  # requests for a token in the time until cells are free: the medians
MAX_GROWTH_BYTES = 16 << 20
_N_WARM_UP, _N_EARLY = 500, 100  # first as many as counted: the index of finished texts is full then
_GIVEN_UP_S = 60.0
_POLL_S = 0.005
_SETTLE_S = 4.0  # idle, the worker begins to save after 2 s
_HOST = "127.0.0.1"


async def _one(port: int, prompt: str, patience_s: float | None, gone: asyncio.Barrier) -> None:
    """Ask for a long answer, wait for its first text or for `patience_s`, and hang up together with all others."""
    body = json.dumps({"prompt": prompt, "stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(_HOST, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {_HOST}:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    if patience_s is None:
        while not (line := await reader.readline()).startswith(b"data:"):
            assert line, "the service closed the connection"
    else:
        await asyncio.sleep(patience_s)
    await gone.wait()
    writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Freed:
    """How long the engine held anything for a wave of clients that had all gone: in all, and of processor time.

    `twin_ms` is how long a request for a token took just afterwards.
    """

    ms: float
    computed_ms: float
    twin_ms: float


async def _wave(served: Served, prompts: list[str], chance: random.Random, *, is_early: bool) -> Freed:
    gone = asyncio.Barrier(len(prompts))
    waits = [chance.uniform(0.0, 0.1) if is_early else None for _ in prompts]
    await asyncio.gather(*(_one(served.port, *each, gone) for each in zip(prompts, waits, strict=True)))
    begun_s, computed_s = time.perf_counter(), _computed_s(served)
    while await asyncio.to_thread(served.n_in_engine):
        if time.perf_counter() - begun_s > _GIVEN_UP_S:
            break
        await asyncio.sleep(_POLL_S)
    freed_s, computed_s = time.perf_counter() - begun_s, _computed_s(served) - computed_s
    twin_s = await asyncio.to_thread(_ask_for_a_token, served)
    return Freed(1000 * freed_s, 1000 * computed_s, 1000 * twin_s)


def _computed_s(served: Served) -> float:
    """Return the processor time that service and worker have taken."""
    times = [process.cpu_times() for process in (served.process, served.worker)]
    return sum(each.user + each.system for each in times)


def _ask_for_a_token(served: Served) -> float:
    """Return how many seconds an undisturbed client waits for an answer of one token."""
    begun_s = time.perf_counter()
    served.http.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 1}).raise_for_status()
    return time.perf_counter() - begun_s


async def hang_up_in_waves(served: Served, n_clients: int, seed: int, *, is_early: bool = False) -> list[Freed]:
    """Return what `_wave` does for as many waves as `n_clients` make, early ones larger than all seats."""
    chance, prose = random.Random(seed), RandomText(seed)
    largest = 2 * N_PARALLEL if is_early else N_PARALLEL
    freed: list[Freed] = []
    for size in _sizes(n_clients, largest, chance):
        prompts = [prose.words(chance.randint(4, 40)) for _ in range(size)]
        freed.append(await _wave(served, prompts, chance, is_early=is_early))
    return freed


def _sizes(n_clients: int, largest: int, chance: random.Random) -> Iterator[int]:
    while n_clients:
        size = min(n_clients, chance.randint(1, largest))
        n_clients -= size
        yield size


def _grown(name: str, before: Footprint, after: Footprint, saved_bytes: int) -> Iterator[tuple[str, str, bool]]:
    """Yield what a process holds more than before, `saved_bytes` of computed prompts aside, and whether it may."""
    n_bytes = after.rss_bytes - before.rss_bytes - saved_bytes
    yield f"{name}: files and sockets", f"{before.n_handles} → {after.n_handles}", after.n_handles <= before.n_handles
    yield f"{name}: threads", f"{before.n_threads} → {after.n_threads}", after.n_threads <= before.n_threads
    saved = f" beside {saved_bytes / 2**20:.1f} MiB of saved prompts" if saved_bytes else ""
    yield f"{name}: resident memory", f"{n_bytes / 2**20:+.1f} MiB{saved}", n_bytes <= MAX_GROWTH_BYTES


def _freed(name: str, n_clients: int, freed: list[Freed]) -> Iterator[tuple[str, str, bool]]:
    computed_ms = [each.computed_ms for each in freed]
    yield (
        f"computed until cells are free after {name}",
        f"{n_clients} clients in {len(freed)} waves: median {median(computed_ms):.0f}, worst {max(computed_ms):.0f} ms",
        max(computed_ms) <= FREE_WITHIN_MS,
    )
    freed_ms, twin_ms = median(each.ms for each in freed), median(each.twin_ms for each in freed)
    yield (
        f"cells free after {name}",
        f"median {freed_ms:.0f} ms, worst {max(each.ms for each in freed):.0f} ms; a token's answer {twin_ms:.0f} ms",
        freed_ms <= MAX_TWINS * twin_ms,
    )


def examine(served: Served, n_clients: int, seed: int) -> list[tuple[str, str, bool]]:
    """Return (what was looked at, what was seen, whether it may be so) of one run."""
    n_answered_in_all_cells(served, N_PARALLEL)  # touches all memory that the KV cache and its graphs ever need
    asyncio.run(hang_up_in_waves(served, _N_WARM_UP, seed=2 * seed + 2))
    asyncio.run(hang_up_in_waves(served, _N_WARM_UP, seed=2 * seed + 3, is_early=True))
    # a rehearsal: what it computes of their prompts stays saved in memory, up to 1 GiB, and is saved but once
    asyncio.run(hang_up_in_waves(served, n_clients, seed=2 * seed))
    asyncio.run(hang_up_in_waves(served, _N_EARLY, seed=2 * seed + 1, is_early=True))
    time.sleep(_SETTLE_S)
    processes = {"service": served.process, "worker": served.worker}
    before, n_saved_before = {name: footprint(process) for name, process in processes.items()}, served.saved_bytes()
    in_stream = asyncio.run(hang_up_in_waves(served, n_clients, seed=2 * seed))
    early = asyncio.run(hang_up_in_waves(served, _N_EARLY, seed=2 * seed + 1, is_early=True))
    time.sleep(_SETTLE_S)
    found = [*_freed("hang-ups in mid-stream", n_clients, in_stream), *_freed("early hang-ups", _N_EARLY, early)]
    saved_bytes = {"service": 0, "worker": served.saved_bytes() - n_saved_before}
    for name, process in processes.items():
        found += _grown(name, before[name], footprint(process), saved_bytes[name])
    n_kept, is_same = served.model()["n_running"], served.worker.pid == processes["worker"].pid
    found.append(("answers that the service still waits for", str(n_kept), n_kept == 0))
    n_answered = n_answered_in_all_cells(served, N_PARALLEL)
    found.append(("answers that take all cells at once", f"{n_answered} of {N_PARALLEL}", n_answered == N_PARALLEL))
    return [*found, ("the worker is the same process", str(is_same), is_same)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    flags = ("--ctx", str(N_CTX), "--parallel", str(N_PARALLEL), "--threads", str(options.threads))
    with serve(options.model, options.port, *flags) as served:
        found = examine(served, options.clients, options.seed)
    made = Table("what", "seen", "", box=None, pad_edge=False)
    for what, seen, is_right in found:
        made.add_row(what, seen, "" if is_right else "WRONG")
    show(made)
    finish(options.clients, sum(not is_right for _, _, is_right in found), options.seed)


if __name__ == "__main__":
    main()
