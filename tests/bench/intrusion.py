"""How smoothly an answer goes on while a long prompt arrives. Knows nothing of any particular server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise

from app.bench.client import TimedAnswer
from app.bench.measurement import Figure, Measurement, percentile
from app.bench.workloads import Bench
from quantizer.errors import ServiceError

__all__ = ["intrusion"]

_INTRUDER_TOKENS = 2000
_TOKENS_BEFORE, _TOKENS_AFTER = 16, 4  # of the running answer, around the arrival of the long prompt
_RUNNING_TOKENS = 1500


async def intrusion(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Milliseconds between the pieces of a running answer while a 2,000-token prompt arrives, and its prefill."""
    p50: list[float] = []
    p95: list[float] = []
    rates: list[float] = []
    for _ in range(bench.n_runs):
        gaps_s, intruder = await _intrude(bench)
        p50.append(1000 * percentile(gaps_s, 50))
        p95.append(1000 * percentile(gaps_s, 95))
        rates.append(intruder.n_prompt / intruder.first_token_s)
    yield Measurement("intrusion", "gap p50", "ms", tuple(p50))
    yield Measurement("intrusion", "gap p95", "ms", tuple(p95))
    yield Measurement("intrusion", f"prefill {_INTRUDER_TOKENS}", "tok/s", tuple(rates))


async def _intrude(bench: Bench) -> tuple[list[float], TimedAnswer]:
    """Return the gaps that the prompt's prefill touched, in seconds, and the answer to that prompt."""
    prompt, long_prompt = bench.prose.tokens(64), bench.prose.tokens(_INTRUDER_TOKENS)
    long_answer: asyncio.Task[TimedAnswer] | None = None
    n_wanted = _TOKENS_BEFORE
    stream = bench.client.stream("/v1/completions", {"prompt": prompt}, _RUNNING_TOKENS, **bench.sampling())
    async with aclosing(stream):
        async for running in stream:
            if len(running.arrivals_s) < n_wanted:
                continue
            if long_answer is None:
                long_answer = asyncio.create_task(bench.client.complete(long_prompt, 2, **bench.sampling()))
            if long_answer.done():
                if n_wanted > _TOKENS_BEFORE:
                    break
                n_wanted = len(running.arrivals_s) + _TOKENS_AFTER
    if long_answer is None or not long_answer.done():
        cause = f"The answer ended before the prompt of {_INTRUDER_TOKENS} tokens was computed."
        raise ServiceError(cause, "Give the server a longer context.")
    intruder = await long_answer
    begun_s, ended_s = intruder.sent_s, intruder.sent_s + intruder.first_token_s
    gaps = [after - before for before, after in pairwise(running.arrivals_s) if after > begun_s and before < ended_s]
    return gaps, intruder
