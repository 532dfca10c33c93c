from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.engine.grammar.json_grammar import JsonFormat
from app.service.api.anthropic.requests import MessagesBody
from tests.app.running import RunningService
from tests.app.service.template_messages import as_dicts

ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 6,
    "temperature": 0,
}
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'
OTHER_CALL = CALL.replace("Åre", "Oslo")


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    """Every event of an answer, each named by its type."""
    events = []
    for text in response.text.strip().split("\n\n"):
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _messages(**fields: Any) -> list[dict[str, Any]]:
    return as_dicts(MessagesBody.model_validate(ASK | fields).turn().messages)


def test_an_answer_in_one_piece(service: RunningService) -> None:
    answer = service.http.post("/v1/messages?beta=true", json=ASK).json()
    assert answer["type"] == "message"
    assert answer["role"] == "assistant"
    (block,) = answer["content"]
    assert block["type"] == "text"
    assert answer["stop_reason"] == "max_tokens" or len(block["text"]) < 6
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len("<user>hello\n<assistant>")
    assert usage["cache_creation_input_tokens"] == 0


def test_the_events_of_an_answer_come_in_anthropics_order(service: RunningService) -> None:
    whole = service.http.post("/v1/messages", json=ASK).json()
    start, begin, *deltas, stop, ending, last = _events(service.http.post("/v1/messages", json=ASK | {"stream": True}))
    assert [event["type"] for event in (start, begin, stop, ending, last)] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert start["message"]["usage"]["input_tokens"] == len("<user>hello\n<assistant>")
    assert begin["content_block"] == {"type": "text", "text": ""}
    assert "".join(event["delta"]["text"] for event in deltas) == whole["content"][0]["text"]
    assert ending["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    assert ending["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_text_and_calls_are_blocks_of_their_own(service: RunningService) -> None:
    messages = [{"role": "user", "content": f"<say>One moment.{CALL}{OTHER_CALL}</say>"}]
    body = ASK | {"messages": messages, "tools": [TOOL], "max_tokens": 500}
    whole = service.http.post("/v1/messages", json=body).json()
    text, *calls = whole["content"]
    assert text["text"] == "One moment."
    assert [(call["name"], call["input"]["city"]) for call in calls] == [
        ("get_weather", "Åre"),
        ("get_weather", "Oslo"),
    ]
    assert whole["stop_reason"] == "tool_use"
    events = _events(service.http.post("/v1/messages", json=body | {"stream": True}))
    begins = [event for event in events if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in begins] == ["text", "tool_use", "tool_use"]
    assert [event["index"] for event in begins] == [0, 1, 2]
    for index, city in ((1, "Åre"), (2, "Oslo")):
        parts = [event for event in events if event["type"] == "content_block_delta" and event["index"] == index]
        assert json.loads("".join(part["delta"]["partial_json"] for part in parts)) == {"city": city}


def test_the_stop_sequence_that_came_is_named(service: RunningService) -> None:
    messages = [{"role": "user", "content": "<say>one, two; three</say>"}]
    body = ASK | {"messages": messages, "max_tokens": 50, "stop_sequences": [";", "three"]}
    answer = service.http.post("/v1/messages", json=body).json()
    assert answer["content"][0]["text"] == "one, two"
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", ";")


def test_cached_tokens_are_counted_separately(service: RunningService) -> None:
    body = ASK | {"system": "A system text of some length, which every request begins with."}
    for _ in range(2):
        usage = service.http.post("/v1/messages", json=body).json()["usage"]
    assert usage["cache_read_input_tokens"] > 60


def test_a_billing_line_that_changes_leaves_the_prompt_as_it_is(service: RunningService) -> None:
    billing = [{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"} for number in (1, 2)]
    words = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    one, other = (_messages(system=[line, words]) for line in billing)
    assert one == other
    assert one[0] == {"role": "system", "content": "Be kind."}


def test_results_of_calls_are_messages_before_the_users_text() -> None:
    use = {"type": "tool_use", "id": "toolu_abcdefghi", "name": "get_weather", "input": {"city": "Åre"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_abcdefghi", "content": [{"type": "text", "text": "snow"}]}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Wait."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    _, call, answer, question = _messages(messages=messages)
    assert call["content"] == "Wait."
    assert call["tool_calls"][0]["id"] == "abcdefghi"
    assert answer == {"role": "tool", "tool_call_id": "abcdefghi", "content": "snow"}
    assert question == {"role": "user", "content": "And?"}


def test_the_system_may_speak_among_the_messages() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "system", "content": "It is late."},
        {"role": "user", "content": "b"},
    ]
    assert _messages(system="Be kind.", messages=messages) == [{"role": "system", "content": "Be kind."}, *messages]


def test_tools_that_only_anthropics_servers_run_are_left_out() -> None:
    tools = [TOOL, {"type": "web_search_20250305", "name": "web_search"}]
    offer = MessagesBody.model_validate(ASK | {"tools": tools}).turn().tools
    assert [tool.name for tool in offer.tools] == ["get_weather"]


@pytest.mark.parametrize(
    ("choice", "must_call", "only", "is_parallel"),
    [
        ({"type": "auto"}, False, "", None),
        ({"type": "tool", "name": "get_weather", "disable_parallel_tool_use": False}, True, "get_weather", True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, "", False),
        ({"type": "tool", "name": "get_weather"}, True, "get_weather", None),
    ],
)
def test_a_choice_of_tools(choice: dict[str, Any], must_call: bool, only: str, is_parallel: bool | None) -> None:
    offer = MessagesBody.model_validate(ASK | {"tools": [TOOL], "tool_choice": choice}).turn().tools
    assert (offer.must_call, offer.only, offer.is_parallel) == (must_call, only, is_parallel)


@pytest.mark.parametrize(
    ("thinking", "is_on"),
    [(None, False), ({"type": "disabled"}, False), ({"type": "enabled", "budget_tokens": 2000}, True)],
)
def test_templates_receive_whether_to_think(thinking: dict[str, Any] | None, is_on: bool) -> None:
    assert MessagesBody.model_validate(ASK | {"thinking": thinking}).turn().thinking.is_on is is_on


def test_tokens_are_counted_as_the_prompt_has_them(service: RunningService) -> None:
    body = {"model": "tiny", "messages": ASK["messages"], "system": "Be kind."}
    counted = service.http.post("/v1/messages/count_tokens?beta=true", json=body).json()
    assert counted == {"input_tokens": len("<system>Be kind.\n<user>hello\n<assistant>")}


def test_unknown_fields_are_ignored(service: RunningService) -> None:
    extra = {"metadata": {"user_id": "x"}, "context_management": {"edits": []}, "output_config": {"effort": "high"}}
    assert service.http.post("/v1/messages", json=ASK | extra).status_code == 200


def test_a_form_of_the_answer_is_json_of_its_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    turn = MessagesBody.model_validate(ASK | {"output_config": form}).turn()
    assert turn.answer_format == JsonFormat(schema)


@pytest.mark.parametrize(
    ("change", "status", "kind", "word"),
    [
        ({"model": "mario"}, 404, "not_found_error", "tiny"),
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 1000}, 400, "invalid_request_error", "temperature"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_request_error", "role"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "invalid_request_error", "5018 tokens"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, 400, "invalid_request_error", "template"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "no tools"),
        ({"output_config": {"format": {"type": "yaml"}}}, 400, "invalid_request_error", "yaml"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_requests_are_refused_in_anthropics_form(
    service: RunningService, change: dict[str, Any], status: int, kind: str, word: str, stream: bool
) -> None:
    response = service.http.post("/v1/messages", json=ASK | change | {"stream": stream})
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind
    assert word in response.json()["error"]["message"]


def test_a_foreign_page_is_refused_in_the_same_shape(service: RunningService) -> None:
    response = service.http.post("/v1/messages", json=ASK, headers={"origin": "https://evil.example"})
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
