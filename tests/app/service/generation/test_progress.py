"""The progress of a prompt beside the answer that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.loop.counters import Counters
from app.engine.messages import AnswerProgress, EngineMetrics
from app.protocol.chat import PromptProgress, ThreadUse
from app.protocol.status import Occupancy
from app.service.generation.progress import prompt_progress, with_progress


def _progress(n_read: int) -> PromptProgress:
    return PromptProgress(n_tokens=100, n_cached=10, n_read=n_read)


async def test_progress_comes_before_the_first_item_only_and_only_as_it_grows() -> None:
    has_prompt, found = asyncio.Event(), [20, 20, 60, None]

    async def items() -> AsyncGenerator[str, None]:
        await has_prompt.wait()
        yield "first"
        await asyncio.sleep(0.05)
        yield "second"

    async def progress() -> PromptProgress | None:
        n_read = found.pop(0)
        if not found:
            has_prompt.set()
        return None if n_read is None else _progress(n_read)

    seen = [item async for item in with_progress(items(), progress, interval_s=0.001, only_growth=True)]
    assert seen == [_progress(20), _progress(60), "first", "second"]


@pytest.mark.parametrize("n_polled", [0, 60])
async def test_a_client_hears_what_was_cached_first_and_the_whole_prompt_last(n_polled: int) -> None:
    has_polled = asyncio.Event()

    async def items() -> AsyncGenerator[str, None]:
        if n_polled:
            await has_polled.wait()
        yield "first"
        yield "second"

    async def progress() -> PromptProgress | None:
        has_polled.set()
        return replace(_progress(n_polled), n_cached=10, elapsed_s=1.0)

    def read_prompt(item: str) -> PromptProgress:
        assert item == "first"
        return replace(_progress(100), n_cached=10)

    streamed = with_progress(items(), progress, interval_s=0.001 if n_polled else 60, read_prompt=read_prompt)
    seen = [item async for item in streamed]
    counts = [item.n_read if isinstance(item, PromptProgress) else item for item in seen]
    polled = [count for count in counts[1:-3] if count == n_polled]
    assert counts == [10, *polled, 100, "first", "second"]
    begin, *_ = seen
    assert isinstance(begin, PromptProgress)
    assert begin.elapsed_s == 0


async def test_progress_comes_again_and_again_though_nothing_grows() -> None:
    has_prompt, n_asked = asyncio.Event(), 0

    async def items() -> AsyncGenerator[str, None]:
        await has_prompt.wait()
        yield "first"

    async def progress() -> PromptProgress | None:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 4:
            has_prompt.set()
            return None
        return _progress(20)

    seen = [item async for item in with_progress(items(), progress, interval_s=0.001)]
    assert seen == [_progress(20)] * 3 + ["first"]


async def test_an_error_of_the_answer_is_raised_and_its_end_ends_it() -> None:
    async def failing() -> AsyncGenerator[str, None]:
        raise ValueError("no")
        yield ""

    async def ending() -> AsyncGenerator[str, None]:
        return
        yield ""

    async def progress() -> None:
        raise AssertionError("the answer has ended")

    with pytest.raises(ValueError, match="no"):
        [item async for item in with_progress(failing(), progress)]
    assert [item async for item in with_progress(ending(), progress)] == []


async def test_closing_early_closes_the_answer() -> None:
    closed = asyncio.Event()

    async def items() -> AsyncGenerator[str, None]:
        try:
            await asyncio.Event().wait()
            yield ""
        finally:
            closed.set()

    async def progress() -> PromptProgress:
        return _progress(30)

    async with aclosing(with_progress(items(), progress, interval_s=0.001)) as waiting:
        assert await anext(waiting) == _progress(30)
    assert closed.is_set()


RUNNING = AnswerProgress(
    request_id="a",
    arrival=0,
    n_prompt_tokens=100,
    n_cached_tokens=10,
    n_computed_tokens=60,
    n_output_tokens=0,
    has_new_line=False,
    prompt_s=2.0,
    prompt_left_s=1.5,
)
BUSY, QUIET = ThreadUse(1, 2, 0.9, 2), ThreadUse(2, 2, 0.05, 2)


def _model(*running: AnswerProgress, n_waiting: int = 0, threads: ThreadUse | None = None) -> Any:
    async def metrics() -> EngineMetrics:
        return EngineMetrics("", Counters(), Occupancy(len(running), n_waiting, 0, 0), running, threads)

    return SimpleNamespace(is_loaded=True, engine=SimpleNamespace(metrics=metrics))


@pytest.mark.parametrize(
    ("model", "progress"),
    [
        (_model(), None),
        (
            _model(RUNNING, threads=QUIET),
            PromptProgress(n_tokens=100, n_cached=10, n_read=60, elapsed_s=2.0, left_s=1.5),
        ),
        (
            _model(RUNNING, threads=BUSY),
            PromptProgress(n_tokens=100, n_cached=10, n_read=60, elapsed_s=2.0, left_s=1.5, machine=BUSY),
        ),
        (_model(replace(RUNNING, n_computed_tokens=101)), None),
        (_model(replace(RUNNING, request_id="b"), n_waiting=1), PromptProgress(n_ahead=1)),
        (_model(replace(RUNNING, request_id="b")), None),
        (SimpleNamespace(is_loaded=False), None),
    ],
    ids=["nothing runs", "reading", "beside other programs", "answering", "waiting", "not there yet", "not loaded"],
)
async def test_the_progress_of_a_request_is_that_of_its_prompt(model: Any, progress: PromptProgress | None) -> None:
    assert await prompt_progress(model, "a") == progress
