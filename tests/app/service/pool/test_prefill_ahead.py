from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.engine.protocol.messages import EngineConfig, EngineMetrics
from app.engine.request import Request
from app.protocol.errors import RequestError
from app.service.pool.background import PrefillAhead
from app.service.pool.engine_client import EngineClient
from tests.app.thread_worker import thread_worker

SAID = "<user>hello\n<assistant>hi\n"
HEAD = "<user>"
ASKED = Request(request_id="asked", prompt="<user>hello\n<assistant>", max_tokens=2, ignore_eos=True)


async def prompt_after(text: str) -> str:
    return f"{SAID}{HEAD}{text}\n<assistant>"


@asynccontextmanager
async def engine(step_ms: float = 0.0) -> AsyncIterator[EngineClient]:
    client = EngineClient(Path("tiny.gguf"), EngineConfig(n_ctx=256), thread_worker(step_ms=step_ms))
    await client.ready()
    try:
        yield client
    finally:
        await client.stop()


async def seen(client: EngineClient) -> EngineMetrics:
    observed = await client.metrics()
    assert observed is not None
    return observed


async def until_prefilled(client: EngineClient, n_tokens: int) -> None:
    async with asyncio.timeout(60):
        while (await seen(client)).counters.n_prefill_tokens < n_tokens:  # noqa: ASYNC110 - the worker counts
            await asyncio.sleep(0.01)


async def n_cached(client: EngineClient, prompt: str) -> int:
    request = Request(request_id="next", prompt=prompt, add_special=False, max_tokens=1)
    async with client.answer(request) as events:
        *_, finished = [event async for event in events]
    return finished.usage.n_cached_tokens  # type: ignore[union-attr]


async def test_the_next_turn_finds_all_but_its_own_text_cached() -> None:
    async with engine() as client:
        PrefillAhead(client, quiet_s=0.0).begin(ASKED, prompt_after)
        await until_prefilled(client, len(SAID + HEAD))
        observed = await seen(client)
        assert observed.counters.n_decode_tokens == 0
        assert observed.counters.first_token_s.n_samples == 0, "nobody waited for a first token"
        assert await n_cached(client, await prompt_after("how are you?")) == len(SAID + HEAD)


async def test_cancelled_prefilling_computes_nothing_more() -> None:
    async with engine(step_ms=5) as client:
        prefill_ahead = PrefillAhead(client, quiet_s=0.0)
        prefill_ahead.begin(ASKED, prompt_after)
        prefill_ahead.cancel()
        await asyncio.sleep(0.1)
        assert (await seen(client)).counters.n_prefill_tokens == 0
        assert not client.is_busy


async def test_nothing_is_prefilled_while_another_answer_runs() -> None:
    endless = Request(request_id="endless", prompt="on and on", ignore_eos=True)
    async with engine(step_ms=5) as client, client.answer(endless) as events:
        await anext(events)
        PrefillAhead(client, quiet_s=0.0).begin(ASKED, prompt_after)
        await asyncio.sleep(0.1)
        assert (await seen(client)).counters.n_prefill_tokens == len("on and on")


async def test_a_template_that_refuses_the_next_turn_is_ignored() -> None:
    async def refuse(_text: str) -> str:
        raise RequestError("Roles must alternate.", "Let them.")

    async with engine() as client:
        PrefillAhead(client, quiet_s=0.0).begin(ASKED, refuse)
        await asyncio.sleep(0.05)
        assert (await seen(client)).counters.n_prefill_tokens == 0
