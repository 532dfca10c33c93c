from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from app.engine.messages import AnswerProgress
from app.engine.request import TokenLogprob
from app.protocol.chat import ToolCallDelta
from app.service.api.lmstudio.sdk_requests import ChatHistory
from app.service.api.lmstudio.sdk_text import PacketMaker, progress_packet, with_progress
from app.service.generation.generation import Delta


def _packets(maker: PacketMaker, *deltas: Delta) -> list[dict[str, Any]]:
    return [*(packet for delta in deltas for packet in maker.of_delta(delta)), *maker.of_end()]


def _fragments(packets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["fragment"]["reasoningType"], item["fragment"]["content"]) for item in packets]


def test_reasoning_lies_between_two_tags_of_its_own() -> None:
    packets = _packets(
        PacketMaker(), Delta(index=0, reasoning="Hm", n_tokens=2), Delta(index=0, text="It snows.", n_tokens=5)
    )
    assert _fragments(packets) == [
        ("reasoningStartTag", "<think>"),
        ("reasoning", "Hm"),
        ("reasoningEndTag", "</think>\n\n"),
        ("none", "It snows."),
    ]
    assert [item["fragment"]["tokensCount"] for item in packets] == [0, 2, 0, 3]


def test_reasoning_that_is_all_there_is_ends_too() -> None:
    packets = _packets(PacketMaker(), Delta(index=0, reasoning="Hm", n_tokens=2))
    assert [kind for kind, _ in _fragments(packets)] == ["reasoningStartTag", "reasoning", "reasoningEndTag"]


def test_an_answer_of_a_given_form_comes_without_reasoning() -> None:
    deltas = Delta(index=0, reasoning="Hm", n_tokens=2), Delta(index=0, text="{}", n_tokens=3)
    assert _fragments(_packets(PacketMaker(has_reasoning=False), *deltas)) == [("none", "{}")]


def test_what_a_client_was_sent_comes_back_as_reasoning_and_answer() -> None:
    packets = _packets(
        PacketMaker(), Delta(index=0, reasoning="Hm\nso", n_tokens=2), Delta(index=0, text="It snows.", n_tokens=5)
    )
    sent = "".join(content for _, content in _fragments(packets))
    history = {"messages": [{"role": "assistant", "content": [{"type": "text", "text": sent}]}]}
    (message,) = ChatHistory.model_validate(history).openai_messages()
    assert message == {"role": "assistant", "content": "It snows.", "reasoning_content": "Hm\nso"}


def test_two_calls_each_begin_and_end() -> None:
    packets = _packets(
        PacketMaker(),
        Delta(index=0, calls=(ToolCallDelta(0, "a", "first", '{"x"'),), n_tokens=1),
        Delta(index=0, calls=(ToolCallDelta(0, arguments=": 1}"), ToolCallDelta(1, "b", "second")), n_tokens=3),
    )
    assert [packet["type"].removeprefix("toolCallGeneration") for packet in packets] == [
        "Start",
        "NameReceived",
        "ArgumentFragmentGenerated",
        "ArgumentFragmentGenerated",
        "End",
        "Start",
        "NameReceived",
        "End",
    ]
    requests = [packet["toolCallRequest"] for packet in packets if "toolCallRequest" in packet]
    assert [(item["id"], item["name"], item["arguments"]) for item in requests] == [
        ("a", "first", {"x": 1}),
        ("b", "second", {}),
    ]


def test_a_call_that_was_cut_off_has_failed() -> None:
    *_, failed = _packets(
        PacketMaker(), Delta(index=0, calls=(ToolCallDelta(0, "a", "first", '{"x": "so'),), n_tokens=1)
    )
    assert failed["type"] == "toolCallGenerationFailed"
    assert failed["error"]["title"] == "The call of first was cut off."
    assert json.dumps(failed["rawContent"])


def test_probabilities_come_in_the_forms_of_both_versions() -> None:
    entry = TokenLogprob(b"a", -0.5, ((4, b"b", -0.25), (3, b"a", -0.5)), offset=0, token=3)
    (packet,) = _packets(PacketMaker(), Delta(index=0, text="a", logprobs=(entry,), n_tokens=1))
    assert packet["logprobs"] == [[{"text": "a", "logprob": -0.5}, {"text": "b", "logprob": -0.25}]]
    candidates = [{"text": "b", "id": 4, "logProb": -0.25}, {"text": "a", "id": 3, "logProb": -0.5}]
    assert packet["fragment"]["tokens"] == [{"text": "a", "id": 3, "logProb": -0.5, "candidates": candidates}]


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
