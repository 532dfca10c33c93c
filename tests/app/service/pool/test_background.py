from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from app.engine.messages import EngineConfig, EngineMetrics
from app.engine.request import Request
from app.engine.tuning.tune_results import DISTURBED
from app.protocol.errors import RequestError
from app.service.pool.background import IdleTuning, PrefillAhead
from app.service.pool.engine_client import EngineClient
from offload.devices.host import CpuTimes
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


# Writes one letter when it begins, another when it ends; its first run sleeps before that. Ends with its stdin.
PROGRAM = """
import os, sys, threading, time
def watch():
    while os.read(0, 100): pass
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
def note(letter):
    with open(sys.argv[1], "a") as file: file.write(letter)
sleep_s = 0.0 if os.path.exists(sys.argv[1]) else float(sys.argv[2])
note("b"); time.sleep(sleep_s); note("e")
"""


def command(path: Path, seconds: float = 0.0) -> list[str]:
    return [sys.executable, "-P", "-c", PROGRAM, str(path), str(seconds)]


def noted(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until(path: Path, text: str) -> None:
    async with asyncio.timeout(120):
        while noted(path) != text:  # noqa: ASYNC110 - a child notifies nobody
            await asyncio.sleep(0.01)


def processors(is_busy: Callable[[], bool] = lambda: False) -> Callable[[], CpuTimes]:
    """Return readings of processors of which others take all while they are busy, and nothing otherwise."""
    idle_s = total_s = 0.0

    def read() -> CpuTimes:
        nonlocal idle_s, total_s
        total_s += 1.0
        idle_s += 0.0 if is_busy() else 1.0
        return CpuTimes(total_s, idle_s, 0.0)

    return read


def test_nothing_is_measured_while_other_programs_compute(tmp_path: Path) -> None:
    async def run() -> None:
        n_looks = 0
        was_early = True

        def is_building() -> bool:
            nonlocal n_looks, was_early
            n_looks += 1
            if n_looks == 20:
                was_early = noted(tmp_path / "log") != ""
            return n_looks < 20

        tuning = IdleTuning(lambda: False, quiet_s=0.01, read_times=processors(is_building))
        tuning.add(command(tmp_path / "log"))
        await until(tmp_path / "log", "be")
        await tuning.close()
        assert not was_early

    asyncio.run(run())


def test_a_new_model_is_measured_when_the_service_is_idle(tmp_path: Path) -> None:
    async def run() -> None:
        tuning = IdleTuning(lambda: False, quiet_s=0.05, read_times=processors())
        tuning.add(command(tmp_path / "log"))
        await until(tmp_path / "log", "be")
        await tuning.close()

    asyncio.run(run())


def test_work_ends_measuring_at_once_and_it_restarts_later(tmp_path: Path) -> None:
    async def run() -> None:
        tuning = IdleTuning(lambda: False, quiet_s=0.05, read_times=processors())
        tuning.add(command(tmp_path / "log", 60.0))
        await until(tmp_path / "log", "b")
        tuning.interrupt()
        await until(tmp_path / "log", "bbe")
        await tuning.close()

    asyncio.run(run())


def test_nothing_is_measured_while_an_engine_is_busy(tmp_path: Path) -> None:
    async def run() -> None:
        is_busy = [True]
        tuning = IdleTuning(lambda: is_busy[0], quiet_s=0.02, read_times=processors())
        tuning.add(command(tmp_path / "log"))
        await asyncio.sleep(0.2)
        assert noted(tmp_path / "log") == ""
        is_busy[0] = False
        await until(tmp_path / "log", "be")
        await tuning.close()

    asyncio.run(run())


def test_closing_ends_the_child(tmp_path: Path) -> None:
    async def run() -> None:
        tuning = IdleTuning(lambda: False, quiet_s=0.02, read_times=processors())
        tuning.add(command(tmp_path / "log", 60.0))
        await until(tmp_path / "log", "b")
        async with asyncio.timeout(120):
            await tuning.close()

    asyncio.run(run())


def test_what_other_programs_disturbed_is_measured_again(tmp_path: Path) -> None:
    program = f"import os, sys; os.path.exists(sys.argv[1]) or (open(sys.argv[1], 'w'), sys.exit({DISTURBED}))"

    async def run() -> None:
        tuning = IdleTuning(lambda: False, quiet_s=0.01, read_times=processors())
        tuning.add([sys.executable, "-P", "-c", program, str(tmp_path / "first")])
        tuning.add(command(tmp_path / "log"))
        await until(tmp_path / "log", "be")  # it waits for the other's second run
        await tuning.close()
        assert (tmp_path / "first").exists()

    asyncio.run(run())
