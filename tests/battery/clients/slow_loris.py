"""Do clients that take their time hold up the others? 200 of them, and honest ones beside them.

Run: `uv run python tests/battery/clients/slow_loris.py MODEL.gguf`. A third of the slow ones drip the headers of
requests, a third the bodies, a third have asked for a stream and never read it; whoever is thrown out comes back.
Honest clients ask for a token at a time meanwhile, by turns of this service and of a twin that has no slow clients:
what other programs take is taken from both. Exits with 1 where more than one in a hundred honest requests takes more
than twice as long as the 99th percentile of the twin's, by more than chance would have it, or where one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.table import Table

from app.bench.workloads import RandomText
from tests.battery.tally import finish
from tests.bench.report import show
from tests.bench.served import Served, footprint, serve

__all__ = ["SLOW"]

N_SLOW, N_HONEST, MAX_RATIO = 200, 4, 2.0
_LATE_SHARE, _BY_CHANCE = 0.01, 1e-4
DRIP_S = 0.5
_BODY = json.dumps({"prompt": "Once", "max_tokens": 16, "ignore_eos": True, "stream": True}).encode()
_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
_SETTLE_S = 1.0
_OPEN_WITHIN_S = 60.0


async def _drip(data: bytes, writer: asyncio.StreamWriter) -> None:
    for byte in data:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(DRIP_S)


async def _slow_headers(writer: asyncio.StreamWriter) -> None:
    await _drip(_HEAD, writer)


async def _slow_body(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD)
    await _drip(_BODY, writer)


async def _no_reader(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + _BODY)
    await asyncio.Event().wait()


SLOW: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "headers that drip": _slow_headers,
    "a body that drips": _slow_body,
    "a stream that nobody reads": _no_reader,
}


async def _slow(port: int, name: str, thrown_out: Counter[str]) -> None:
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            await SLOW[name](writer)
        except ConnectionError:
            thrown_out[name] += 1
        finally:
            writer.transport.abort()


def _wait_until_said(served: Served) -> None:
    while served.n_in_engine():
        time.sleep(_SETTLE_S / 10)


async def _n_open(served: Served, n_before: int) -> int:
    """Return how many connections are open, once all are: on a busy machine that takes its time."""
    deadline_s = time.perf_counter() + _OPEN_WITHIN_S
    while True:
        n_open = footprint(served.process).n_handles - n_before
        if n_open >= N_SLOW or time.perf_counter() > deadline_s:
            return n_open
        await asyncio.sleep(_SETTLE_S / 10)


@asynccontextmanager
async def slow_clients(served: Served, thrown_out: Counter[str]) -> AsyncIterator[None]:
    """Keep slow ones connected, from when the engine has said all that they never read."""
    kinds = [*SLOW] * N_SLOW
    tasks = [asyncio.create_task(_slow(served.port, name, thrown_out)) for name in kinds[:N_SLOW]]
    await asyncio.sleep(_SETTLE_S)
    try:
        await asyncio.to_thread(_wait_until_said, served)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Waits:
    """How many ms honest clients waited for each answer."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    @property
    def n_late(self) -> int:
        """How many of those beside slow clients took more than twice the 99th percentile of the others."""
        most_ms = MAX_RATIO * percentile(self.alone, 1 - _LATE_SHARE)
        return sum(wait_ms > most_ms for wait_ms in self.beside)

    @property
    def is_held_up(self) -> bool:
        """Whether so many are late that chance would not have it where one in a hundred is."""
        return chance_of(self.n_late, len(self.beside), _LATE_SHARE) < _BY_CHANCE


def chance_of(n_least: int, n_tried: int, share: float) -> float:
    """Return the probability of `n_least` or more of `n_tried`, each of which has the probability `share`."""
    fewer = (math.comb(n_tried, n) * share**n * (1 - share) ** (n_tried - n) for n in range(n_least))
    return 1 - sum(fewer)


async def _honest(
    twin: httpx.AsyncClient, disturbed: httpx.AsyncClient, prose: RandomText, until_s: float, waits: Waits
) -> None:
    while time.perf_counter() < until_s:
        for http, waits_ms in ((twin, waits.alone), (disturbed, waits.beside)):
            begun_s = time.perf_counter()
            body = {"prompt": prose.words(16), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            (await http.post("/v1/completions", json=body)).raise_for_status()
            waits_ms.append(1000 * (time.perf_counter() - begun_s))


async def honest_waits(twin: Served, disturbed: Served, seconds: float, seed: int, waits: Waits) -> None:
    """Add how long honest clients of both services wait for each answer."""
    until_s = time.perf_counter() + seconds
    async with _client(twin) as alone, _client(disturbed) as beside:
        clients = [_honest(alone, beside, RandomText(seed + n), until_s, waits) for n in range(N_HONEST)]
        await asyncio.gather(*clients)


def _client(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", trust_env=False, timeout=60)


def percentile(waits_ms: Sequence[float], share: float) -> float:
    return sorted(waits_ms)[min(len(waits_ms) - 1, int(share * len(waits_ms)))]


async def examine(twin: Served, served: Served, seconds: float, n_rounds: int) -> bool:
    thrown_out: Counter[str] = Counter()
    await honest_waits(twin, served, 2.0, 0, Waits())
    waits = Waits()
    await asyncio.sleep(_SETTLE_S)
    n_before = footprint(served.process).n_handles
    for number in range(n_rounds):
        async with slow_clients(served, thrown_out):
            n_open = await _n_open(served, n_before)
            await honest_waits(twin, served, seconds, 100 * (number + 1), waits)
        await asyncio.sleep(_SETTLE_S)
    made = Table("honest requests", "answered", "median ms", "99 % ms", box=None, pad_edge=False)
    for name, each in (("of the twin", waits.alone), (f"beside {n_open} slow connections", waits.beside)):
        made.add_row(name, str(len(each)), f"{percentile(each, 0.5):.1f}", f"{percentile(each, 0.99):.1f}")
    show(made)
    n_more = footprint(served.process).n_handles - n_before
    print(f"late {waits.n_late}; thrown out {dict(thrown_out)}; files more at the end {n_more}")
    return not waits.is_held_up and n_open >= N_SLOW and n_more <= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part of a round (20)")
    parser.add_argument("--rounds", type=int, default=3, help="of new slow clients (3)")
    options = parser.parse_args()
    flags = ("--ctx", "512", "--threads", "1")
    with (
        serve(options.model, 0, *flags, idle_tune="false") as twin,
        serve(options.model, 0, *flags, idle_tune="false") as served,
    ):
        is_right = asyncio.run(examine(twin, served, options.seconds, options.rounds))
    finish(options.rounds, 0 if is_right else 1)


if __name__ == "__main__":
    main()
