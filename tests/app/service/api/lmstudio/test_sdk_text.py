from __future__ import annotations

import json
from typing import Any

from app.engine.request import TokenLogprob
from app.protocol.chat import PromptProgress, ToolCallDelta
from app.service.api.lmstudio.sdk_requests import ChatHistory
from app.service.api.lmstudio.sdk_text import PacketMaker, progress_packet
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


def _progress(n_read: int) -> PromptProgress:
    return PromptProgress(n_tokens=100, n_cached=10, n_read=n_read)


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
