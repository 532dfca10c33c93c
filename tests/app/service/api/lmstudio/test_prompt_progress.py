from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from app.engine.protocol.messages import AnswerProgress
from app.service.api.lmstudio.prediction import progress_packet
from app.service.api.lmstudio.prompt_progress import with_progress


def _progress(n_computed: int) -> AnswerProgress:
    return AnswerProgress(
        request_id="a",
        arrival=0,
        n_prompt_tokens=100,
        n_cached_tokens=10,
        n_computed_tokens=n_computed,
        n_output_tokens=0,
        has_new_line=False,
    )


async def test_progress_comes_before_the_first_item_only_and_only_as_it_grows() -> None:
    has_prompt, found = asyncio.Event(), [20, 20, 60, None]

    async def items() -> AsyncGenerator[str, None]:
        await has_prompt.wait()
        yield "first"
        await asyncio.sleep(0.05)
        yield "second"

    async def progress() -> AnswerProgress | None:
        n_computed = found.pop(0)
        if not found:
            has_prompt.set()
        return None if n_computed is None else _progress(n_computed)

    seen = [item async for item in with_progress(items(), progress, interval_s=0.001)]
    assert seen == [_progress(20), _progress(60), "first", "second"]


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

    async def progress() -> AnswerProgress:
        return _progress(30)

    async with aclosing(with_progress(items(), progress, interval_s=0.001)) as waiting:
        assert await anext(waiting) == _progress(30)
    assert closed.is_set()


def test_a_packet_has_the_details_of_the_sdk_2() -> None:
    assert progress_packet(_progress(60)) == {
        "type": "promptProcessingProgress",
        "progress": 0.6,
        "details": {
            "cachedTokenCount": 10,
            "totalPromptTokenCount": 100,
            "processedPromptTokenCount": 60,
            "unprocessedPromptTokenCount": 40,
        },
    }
