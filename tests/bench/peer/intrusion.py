"""How smoothly an answer goes on while long prompts arrive. Knows nothing of any particular server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.bench.client import TimedAnswer
from app.bench.measurement import Figure, Measurement
from app.bench.workloads import Bench
from app.protocol.errors import ServiceError

__all__ = ["intrusion"]

_TOKENS_BEFORE, _TOKENS_AFTER = 16, 4  # of the running answer, around the arrival of the prompts
_RUNNING_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Prompts that arrive together while an answer runs."""

    n_prompts: int
    n_tokens: int

    def __str__(self) -> str:
        return f"{self.n_prompts} × {self.n_tokens}"


_ARRIVALS = (_Arrival(1, 2000), _Arrival(4, 500))


async def intrusion(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Milliseconds between the pieces of a running answer while one prompt arrives or several, and their prefill."""
    for arrival in _ARRIVALS:
        p50: list[float] = []
        p95: list[float] = []
        rates: list[float] = []
        for _ in range(bench.n_runs):
            gaps_s, rate = await _intrude(bench, arrival)
            p50.append(1000 * float(np.percentile(gaps_s, 50)))
            p95.append(1000 * float(np.percentile(gaps_s, 95)))
            rates.append(rate)
        yield Measurement("intrusion", f"{arrival}, gap p50", "ms", tuple(p50))
        yield Measurement("intrusion", f"{arrival}, gap p95", "ms", tuple(p95))
        yield Measurement("intrusion", f"{arrival}, prefill", "tok/s", tuple(rates))


async def _intrude(bench: Bench, arrival: _Arrival) -> tuple[list[float], float]:
    """Return the gaps that the prompts' prefill touched, in seconds, and its tokens a second until all had begun."""
    prompt = bench.prose.tokens(64)
    intruders = [bench.prose.tokens(arrival.n_tokens) for _ in range(arrival.n_prompts)]
    arrived: asyncio.Future[list[TimedAnswer]] | None = None
    n_wanted = _TOKENS_BEFORE
    stream = bench.client.stream("/v1/completions", {"prompt": prompt}, _RUNNING_TOKENS, **bench.sampling())
    async with aclosing(stream):
        async for running in stream:
            if len(running.arrivals_s) < n_wanted:
                continue
            if arrived is None:
                arrived = asyncio.gather(*(bench.client.complete(text, 2, **bench.sampling()) for text in intruders))
            if arrived.done():
                if n_wanted > _TOKENS_BEFORE:
                    break
                n_wanted = len(running.arrivals_s) + _TOKENS_AFTER
    if arrived is None or not arrived.done():
        cause = f"The answer ended before the prompts of {arrival} tokens were computed."
        raise ServiceError(cause, "Give the server a longer context.")
    answers = await arrived
    begun_s = min(answer.sent_s for answer in answers)
    ended_s = max(answer.sent_s + answer.first_token_s for answer in answers)
    gaps = [after - before for before, after in pairwise(running.arrivals_s) if after > begun_s and before < ended_s]
    return gaps, sum(answer.n_prompt for answer in answers) / (ended_s - begun_s)
