"""Do clients that take their time hold up the others? 200 of them, and honest ones beside them.

Run: `uv run python tests/bench/slow_loris.py MODEL.gguf`. A third of the slow ones drip the headers of requests, a
third the bodies, a third have asked for a stream and never read it; whoever is thrown out comes back. Honest clients
ask for a token at a time meanwhile, in turns with a time in which they are alone. Exits with 1 where the slow ones make
the honest ones' 99th percentile more than twice as long, or an honest request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from rich.table import Table

from app.bench.workloads import RandomText
from tests.bench.report import show
from tests.bench.served import Served, footprint, serve
from tests.bench.tally import finish

__all__ = ["SLOW"]

N_SLOW, N_HONEST, MAX_RATIO = 200, 4, 2.0
DRIP_S = 0.5
_BODY = json.dumps({"prompt": "Once", "max_tokens": 16, "ignore_eos": True, "stream": True}).encode()
_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
_SETTLE_S = 1.0


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


async def _honest(http: httpx.AsyncClient, prose: RandomText, until_s: float, waits_ms: list[float]) -> None:
    while time.perf_counter() < until_s:
        begun_s = time.perf_counter()
        body = {"prompt": prose.words(16), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        (await http.post("/v1/completions", json=body)).raise_for_status()
        waits_ms.append(1000 * (time.perf_counter() - begun_s))


async def honest_waits_ms(served: Served, seconds: float, seed: int) -> list[float]:
    """Return how long honest clients wait for each answer."""
    waits_ms: list[float] = []
    url, until_s = f"http://127.0.0.1:{served.port}", time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        await asyncio.gather(*(_honest(http, RandomText(seed + n), until_s, waits_ms) for n in range(N_HONEST)))
    return waits_ms


def percentile(waits_ms: Sequence[float], share: float) -> float:
    return sorted(waits_ms)[min(len(waits_ms) - 1, int(share * len(waits_ms)))]


async def examine(served: Served, seconds: float, n_rounds: int) -> bool:
    alone: list[float] = []
    beside: list[float] = []
    thrown_out: Counter[str] = Counter()
    await honest_waits_ms(served, 2.0, 0)
    await asyncio.sleep(_SETTLE_S)
    n_before = footprint(served.process).n_handles
    for number in range(n_rounds):
        alone += await honest_waits_ms(served, seconds, 100 * number)
        async with slow_clients(served, thrown_out):
            n_open = footprint(served.process).n_handles - n_before
            beside += await honest_waits_ms(served, seconds, 100 * number + 50)
        await asyncio.sleep(_SETTLE_S)
    ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
    made = Table("honest requests", "answered", "median ms", "99 % ms", box=None, pad_edge=False)
    for name, waits in (("alone", alone), (f"beside {n_open} slow connections", beside)):
        made.add_row(name, str(len(waits)), f"{percentile(waits, 0.5):.1f}", f"{percentile(waits, 0.99):.1f}")
    show(made)
    n_more = footprint(served.process).n_handles - n_before
    print(f"99 %: {ratio:.2f} × as long; thrown out {dict(thrown_out)}; files more at the end {n_more}")
    return ratio <= MAX_RATIO and n_open >= N_SLOW and n_more <= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part of a round (20)")
    parser.add_argument("--rounds", type=int, default=3, help="alone, then beside slow ones (3)")
    options = parser.parse_args()
    with serve(options.model, 0, "--ctx", "512", idle_tune="false") as served:
        is_right = asyncio.run(examine(served, options.seconds, options.rounds))
    finish(options.rounds, 0 if is_right else 1)


if __name__ == "__main__":
    main()
