from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.messages import EngineConfig, Finished, Output
from app.engine.request import FinishReason, Request, SamplingParams
from app.protocol.errors import ContextOverflowError, RequestError
from app.service.pool.engine_client import CrashLimit, EngineClient, EngineOwner
from app.service.pool.worker_process import WorkerProcess
from quantizer.system.errors import EngineError
from quantizer.system.process import python_command
from tests.app.thread_worker import thread_worker

ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)
SHORT = Request(request_id="short", prompt="hello", max_tokens=4, ignore_eos=True)


@asynccontextmanager
async def _open(
    *, step_ms: float = 0, load_ms: float = 0, can_be_killed: bool = False, limit: CrashLimit | None = None
) -> AsyncIterator[EngineClient]:
    options = (f"--fake-step-ms={step_ms}", f"--fake-load-ms={load_ms}")
    process = partial(WorkerProcess.start, python_command("app.engine.worker", "--fake", *options))
    start_worker = process if can_be_killed else thread_worker(step_ms=step_ms, load_ms=load_ms)
    engine = EngineClient(Path("tiny.gguf"), EngineConfig(n_ctx=256), start_worker, limit=limit)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _text(engine: EngineClient, request: Request) -> str:
    async with engine.answer(request) as events:
        return "".join([event.text async for event in events if isinstance(event, Output)])


async def _killed_after_first_output(engine: EngineClient, kill: Callable[[EngineClient], Awaitable[None]]) -> None:
    async with engine.answer(ENDLESS) as events:
        await anext(events)
        await kill(engine)
        async for _ in events:
            pass


async def _until_not_ready(engine: EngineClient) -> None:
    while engine.status.state == "ready":  # noqa: ASYNC110 - it is the death itself that is waited for
        await asyncio.sleep(0.01)


async def _kill_and_wait(engine: EngineClient) -> None:
    _kill(engine)
    await _until_not_ready(engine)


def _kill(engine: EngineClient) -> None:
    assert engine.worker_pid is not None
    os.kill(engine.worker_pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


async def test_an_answer_ends_with_its_usage() -> None:
    async with _open() as engine, engine.answer(SHORT) as events:
        *outputs, finished = [event async for event in events]
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.usage.n_output_tokens) == (FinishReason.LENGTH, 4)
    assert len("".join(event.text for event in outputs if isinstance(event, Output))) == 4


async def test_a_disconnect_frees_the_engine_as_its_metrics_show() -> None:
    async with _open(step_ms=5) as engine:
        assert await engine.metrics() is None, "it is still loading"
        async with engine.answer(ENDLESS) as events:
            await anext(events)
            observed = await engine.metrics()
            assert observed is not None
            assert observed.occupancy.n_running == 1
            assert observed.occupancy.n_cells_used >= len("on and on")
        async with asyncio.timeout(60):
            while (observed := await engine.metrics()) and observed.occupancy.n_running:
                pass
        assert engine.n_running == 0


async def test_concurrent_answers_equal_serial_ones() -> None:
    requests = [
        Request(request_id=str(seed), prompt=f"question {seed}", max_tokens=30, sampling=SamplingParams(seed=seed))
        for seed in range(6)
    ]
    async with _open() as engine:
        together = await asyncio.gather(*(_text(engine, request) for request in requests))
        alone = [await _text(engine, request) for request in requests]
    assert together == alone


async def test_loading_reports_progress_until_it_is_ready() -> None:
    async with _open(load_ms=500) as engine:
        seen = set()
        while engine.status.state == "loading":
            seen.add(engine.status.progress)
            await asyncio.sleep(0.01)
        assert engine.status.state == "ready"
        assert len(seen) > 1
        assert (await engine.ready()).n_ctx == 256


async def test_killed_in_mid_answer_it_fails_at_once_and_the_next_request_has_a_new_worker() -> None:
    async with _open(step_ms=5, can_be_killed=True) as engine:
        await engine.ready()
        first_pid = engine.worker_pid
        with pytest.raises(EngineError, match="died"):
            await _killed_after_first_output(engine, _kill_and_wait)
        assert len(await _text(engine, SHORT)) == 4
        assert engine.worker_pid != first_pid


async def test_a_request_that_comes_while_a_dead_worker_is_cleared_away_is_answered_by_the_next_one() -> None:
    async with _open(can_be_killed=True) as engine:
        before = await _text(engine, SHORT)
        _kill(engine)
        while engine.worker_pid is not None:  # noqa: ASYNC110 - it is the death itself that is waited for
            await asyncio.sleep(0)
        assert await _text(engine, SHORT) == before


async def test_a_running_call_fails_with_its_worker() -> None:
    async with _open(load_ms=300, can_be_killed=True) as engine:
        counting = asyncio.create_task(engine.tokenize("x", add_special=False, parse_special=False))
        while engine.worker_pid is None:  # noqa: ASYNC110 - a process that starts tells nobody
            await asyncio.sleep(0.01)
        _kill(engine)
        with pytest.raises(EngineError, match="died"):
            await counting


@pytest.mark.slow
async def test_after_too_many_deaths_without_an_answer_it_stays_failed_until_the_minute_is_over() -> None:
    now_s = 0.0
    async with _open(can_be_killed=True, limit=CrashLimit(max_failures=2, clock=lambda: now_s)) as engine:
        for _ in range(2):
            await engine.ready()
            await _kill_and_wait(engine)
        with pytest.raises(EngineError, match="2 times within a minute"):
            await _text(engine, SHORT)
        assert engine.status.state == "failed"
        now_s = 61.0
        assert len(await _text(engine, SHORT)) == 4


async def test_a_finished_answer_between_deaths_keeps_it_alive() -> None:
    async with _open(can_be_killed=True, limit=CrashLimit(max_failures=2)) as engine:
        for _ in range(2):
            assert len(await _text(engine, SHORT)) == 4
            await _kill_and_wait(engine)
        assert len(await _text(engine, SHORT)) == 4


async def test_leaving_an_answer_frees_its_slot() -> None:
    async with _open(step_ms=5) as engine:
        for number in range(8):  # there are four slots
            request = Request(request_id=f"left {number}", prompt="on and on", ignore_eos=True)
            async with engine.answer(request) as events:
                await anext(events)
        assert engine.n_running == 0
        async with asyncio.timeout(60):
            assert len(await _text(engine, SHORT)) == 4


async def test_a_request_that_the_engine_refuses_raises_and_the_engine_goes_on() -> None:
    async with _open() as engine:
        with pytest.raises(ContextOverflowError) as raised:
            await _text(engine, Request(request_id="long", prompt="x" * 300))
        assert (raised.value.n_prompt_tokens, raised.value.n_ctx) == (300, 256)
        with pytest.raises(RequestError, match="vocabulary"):
            await engine.detokenize([10**6])
        assert (
            await engine.detokenize(await engine.tokenize("wörld", add_special=False, parse_special=False)) == "wörld"
        )


async def test_stopping_fails_running_answers() -> None:
    async with _open(step_ms=5) as engine:
        with pytest.raises(EngineError, match="unloaded"):
            await _killed_after_first_output(engine, EngineClient.stop)


async def test_stopping_does_not_wait_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.service.pool.engine_client._GRACE_AT_STOP_S", 3600.0)
    program = "import time; time.sleep(3600)"  # a self-test, or a file that is read slowly
    engine = EngineClient(
        Path("tiny.gguf"), EngineConfig(), partial(WorkerProcess.start, [sys.executable, "-P", "-c", program])
    )
    engine.start()
    while engine.worker_pid is None:  # noqa: ASYNC110 - the start of a process announces itself to nobody
        await asyncio.sleep(0.01)
    async with asyncio.timeout(120):
        await engine.stop()
    assert engine.worker_pid is None


@pytest.mark.slow
async def test_a_failed_load_raises_and_the_next_request_retries_it(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    program = f"""
import sys, pathlib
from app.engine import worker
from app.engine import messages
from app.engine import messages
from quantizer.system.errors import ErrorInfo
marker = pathlib.Path({str(marker)!r})
if marker.exists():
    sys.argv = ["worker", "--fake"]
    worker.main()
else:
    marker.touch()
    failed = messages.Failed("", ErrorInfo("EngineError", "Not enough memory.", "Close something."))
    sys.stdout.buffer.write(messages.encode(failed))
"""
    engine = EngineClient(
        Path("tiny.gguf"), EngineConfig(), partial(WorkerProcess.start, [sys.executable, "-P", "-c", program])
    )
    try:
        with pytest.raises(EngineError, match="Not enough memory"):
            await engine.ready()
        assert engine.status.state == "failed"
        assert len(await _text(engine, SHORT)) == 4
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    ("fault", "sentence", "n_reported"),
    [
        (ZeroDivisionError("odd"), "Loading failed for a bug of localllm", 1),
        (RuntimeError("can't start new thread"), "The system lets the service start no more threads", 0),
    ],
)
async def test_a_bug_or_a_thread_that_the_system_refuses_fails_the_load_instead_of_leaving_it_waiting(
    fault: Exception, sentence: str, n_reported: int
) -> None:
    class Refuser(EngineOwner):
        async def admit(self, engine: EngineClient) -> None:
            raise fault

    reported = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    engine = EngineClient(Path("tiny.gguf"), EngineConfig(), thread_worker(), Refuser())
    with pytest.raises(EngineError, match=sentence):
        await engine.ready()
    await engine.stop()
    assert [context.get("exception") for context in reported] == [fault] * n_reported, "with a traceback in the log"


async def test_an_unloaded_engine_is_loaded_by_the_next_request() -> None:
    async with _open() as engine:
        before = await _text(engine, SHORT)
        worker_pid = engine.worker_pid
        engine.unload()
        assert engine.status.state == "unloaded"
        assert await engine.metrics() is None, "looking does not load it"
        assert await _text(engine, SHORT) == before, "asked while the one before it still ends"
        assert engine.worker_pid not in (None, worker_pid)


async def test_a_busy_engine_is_not_unloaded() -> None:
    async with _open(step_ms=5) as engine, engine.answer(ENDLESS) as events:
        await anext(events)
        engine.unload()
        assert engine.status.state == "ready"
        await anext(events)


async def test_an_engine_can_be_stopped_while_it_is_unloaded_or_restarted() -> None:
    async with _open() as engine:
        await engine.ready()
        engine.unload()
    async with _open() as engine:
        await engine.ready()
        engine.unload()
        engine.start()
    assert engine.worker_pid is None


async def test_a_request_to_a_stopped_engine_fails_instead_of_waiting() -> None:
    async with _open() as engine:
        await engine.ready()
        await engine.stop()
        with pytest.raises(EngineError, match="unloaded"):
            await _text(engine, SHORT)
        assert engine.worker_pid is None


class Notes(EngineOwner):
    """Collects what an owner is notified of."""

    def __init__(self) -> None:
        self.events: list[str] = []
        for name in ("work", "idle", "unloaded", "eviction"):
            setattr(self, f"on_{name}", partial(self.events.append, name))


async def test_an_owner_is_notified_of_work_idleness_and_the_end() -> None:
    notes = Notes()
    engine = EngineClient(Path("tiny.gguf"), EngineConfig(n_ctx=64), thread_worker(), notes)
    async with engine.in_use(), engine.in_use():
        assert (engine.n_users, set(notes.events)) == (2, {"work"})
    assert (engine.n_users, notes.events[-1], notes.events.count("idle")) == (0, "idle", 1)
    engine.unload()
    assert notes.events[-1] == "unloaded"
    await engine.stop()


async def test_a_closed_engine_blocks_new_uses_only() -> None:
    async with _open() as engine:
        async with engine.in_use():
            with engine.closed():
                late = asyncio.create_task(engine.ready())
                cancelled = asyncio.create_task(engine.ready())
                await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.wait({cancelled})
                assert (engine.is_available, engine.n_users, late.done()) == (False, 1, False)
            await late
        assert (engine.is_available, engine.n_users) == (True, 0)


async def test_the_last_use_is_when_the_engine_became_idle() -> None:
    async with _open() as engine:
        await engine.ready()
        before_s = engine.last_used_s
        async with engine.in_use():
            assert engine.last_used_s == before_s
        assert engine.last_used_s > before_s


async def test_one_worker_starts_when_the_one_before_is_gone() -> None:
    start, running, most = thread_worker(), 0, 0

    async def start_counted() -> WorkerProcess:
        nonlocal running, most
        worker = await start()
        running, most = running + 1, max(most, running + 1)
        end = worker.end

        async def end_counted(grace_s: float) -> EngineError:
            nonlocal running
            error = await end(grace_s)
            running -= 1
            return error

        worker.end = end_counted  # type: ignore[method-assign]
        return worker

    engine = EngineClient(Path("tiny.gguf"), EngineConfig(n_ctx=64), start_counted)
    for _ in range(3):
        await engine.ready()
        engine.unload()
        engine.start()
        await asyncio.sleep(0)
        engine.reload(lambda config: config)
    await engine.ready()
    await engine.stop()
    assert (running, most) == (0, 1)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _failing(clock: Clock, *times_s: float) -> CrashLimit:
    limit = CrashLimit(max_failures=3, window_s=60, clock=clock)
    for clock.now_s in times_s:
        limit.record_failure()
    return limit


def test_two_failures_are_not_too_many() -> None:
    assert not _failing(Clock(), 0, 1).is_reached


def test_three_failures_within_a_minute_are_too_many_until_the_minute_is_over() -> None:
    clock = Clock()
    limit = _failing(clock, 0, 30, 59)
    assert limit.is_reached
    clock.now_s = 60
    assert not limit.is_reached


def test_three_failures_over_a_longer_time_are_not_too_many() -> None:
    assert not _failing(Clock(), 0, 30, 61).is_reached


def test_a_finished_answer_resets_the_count() -> None:
    clock = Clock()
    limit = _failing(clock, 0, 1)
    limit.record_success()
    limit.record_failure()
    assert not limit.is_reached


@given(st.lists(st.floats(0, 300), max_size=20))
def test_it_agrees_with_counting_the_last_three_by_hand(times_s: list[float]) -> None:
    clock = Clock()
    limit = _failing(clock, *sorted(times_s))
    recent = sorted(times_s)[-3:]
    assert limit.is_reached == (len(recent) == 3 and recent[-1] - recent[0] < 60)


def test_the_last_failure_explains_that_nothing_is_retried_only_where_that_is_so() -> None:
    error = EngineError("It died.", "Ask again.")
    assert _failing(Clock(), 0, 1).explained(error) is error
    explained = _failing(Clock(), 0, 1, 2).explained(error)
    assert explained.cause == "The engine failed 3 times within a minute. It died."
