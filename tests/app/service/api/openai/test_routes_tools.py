"""Tool calls over HTTP with the fake engine, and with the official OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from app.protocol.errors import RequestError
from app.service.api.openai.requests import ChatCompletionBody
from app.service.generation.message_order import TAKES_ALL, with_whole_calls
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.app.service.template_messages import as_dicts

TOOL: sdk.openai.types.chat.ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'


def asking(answer: str) -> list[sdk.openai.types.chat.ChatCompletionMessageParam]:
    """Return messages to which the fake model answers `answer`."""
    return [{"role": "user", "content": f"<say>{answer}</say>"}]


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_call_comes_structured(client: sdk.openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=asking(f"One moment.\n{CALL}"), tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Åre"}
    assert len(call.id) == 9


def test_calls_stream_name_first_and_then_their_arguments(client: sdk.openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=asking(CALL + CALL.replace("Åre", "Oslo") + CALL), tools=[TOOL]
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [
        part
        for event in events
        if event.type == "chunk"
        for choice in event.chunk.choices
        for part in choice.delta.tool_calls or []
    ]
    assert [part.function.name for part in deltas if part.function and part.function.name] == ["get_weather"] * 2
    assert deltas[0].id
    assert [part.index for part in deltas] == sorted(part.index for part in deltas), "one call after the other"
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert choice.message.tool_calls is not None
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        {"city": "Åre"},
        {"city": "Oslo"},
    ]


def test_a_whole_loop_with_a_tool_runs(client: sdk.openai.OpenAI) -> None:
    messages = asking(CALL)
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message
    assert first.content is None
    assert first.tool_calls is not None
    messages += [
        first.model_dump(exclude_none=True),  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "<say>It snows.</say>"},
    ]
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0]
    assert second.message.content == "It snows."
    assert second.message.tool_calls is None
    assert second.finish_reason == "stop"


@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_without_an_offer_calls_are_text(service: RunningService, extra: dict[str, Any]) -> None:
    body = {"messages": asking(CALL), **extra}
    (choice,) = service.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert choice["finish_reason"] == "stop"


def test_a_call_cut_short_has_its_beginning(service: RunningService) -> None:
    body = {"messages": asking(CALL), "tools": [TOOL], "max_tokens": len(CALL.encode()) - 15}
    (choice,) = service.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Åre"'


def test_one_call_at_most_where_a_client_wants_that(service: RunningService) -> None:
    body = {"messages": asking(CALL + CALL), "tools": [TOOL], "parallel_tool_calls": False}
    (choice,) = service.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] == CALL


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tool_choice": "sometimes"}, "sometimes"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "other"),
        ({"tool_choice": {"type": "allowed_tools"}}, "allowed_tools"),
        ({"tool_choice": "required", "tools": []}, "no tools"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"grammar": 'root ::= "a"'}, "Both a grammar and tools"),
    ],
)
def test_unsupported_tools_are_refused(fields: dict[str, Any], word: str) -> None:
    body = ChatCompletionBody.model_validate({"messages": asking("x"), "tools": [TOOL], **fields})
    with pytest.raises(RequestError, match=word):
        body.turn()


def test_a_conversation_goes_on_after_a_call_that_was_cut_off(client: sdk.openai.OpenAI) -> None:
    """The loop of openai 3.54 for Python: the message goes back as it came, with a result for each call."""
    messages = asking(CALL)
    asked = {"model": "tiny", "tools": [TOOL]}
    first = client.chat.completions.create(messages=messages, max_tokens=len(CALL.encode()) - 20, **asked)  # type: ignore[call-overload]
    (call,) = first.choices[0].message.tool_calls
    assert call.function.arguments == '{"city": "'
    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Error: arguments are not JSON. <say>Again.</say>"},
    ]
    assert client.chat.completions.create(messages=messages, **asked).choices[0].message.content == "Again."  # type: ignore[call-overload]


@pytest.mark.parametrize("arguments", ['{"city": "Å', "[1]", '"x"', "[" * 100_000])
def test_an_incomplete_call_of_an_earlier_turn_is_text(arguments: str) -> None:
    call = {"id": "1", "function": {"name": "get_weather", "arguments": arguments}}
    body = ChatCompletionBody.model_validate(
        {"messages": [{"role": "assistant", "content": "Hm.", "tool_calls": [call]}, {"role": "user", "content": "x"}]}
    )
    assert as_dicts(with_whole_calls(body.turn().messages, TAKES_ALL)) == [
        {"role": "assistant", "content": f"Hm.\n\nIncomplete call of get_weather: {arguments}"},
        {"role": "user", "content": "x"},
    ]


def test_a_call_without_a_name_is_no_body() -> None:
    with pytest.raises(ValidationError):
        ChatCompletionBody.model_validate({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_what_of_a_schema_cannot_be_kept_to_is_said(service: RunningService, choice: str) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "string", "not": {}}}}}
    body = {"messages": asking("x"), "tools": [{"type": "function", "function": function}], "tool_choice": choice}
    response = service.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    notice = "Calls of f are held to a part of their schema only: #/properties/a: The schema's keyword 'not' is not "
    assert f"{notice}supported." in response.json()["warnings"]
