"""/v1/responses as JSON, and by the official OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.engine.grammar.json_grammar import ANY_OBJECT
from app.protocol.errors import RequestError
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.thinking import Thinking
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.app.service.template_messages import as_dicts

ASK: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 6, "temperature": 0}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": None,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'


def _events(text: str) -> list[dict[str, Any]]:
    events = []
    for part in text.strip().split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _messages(**fields: Any) -> list[dict[str, Any]]:
    return as_dicts(ResponsesBody.model_validate(ASK | fields).turn().messages)


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.slow
def test_timings_and_progress_come_as_llama_server_sends_them(
    service: RunningService, client: sdk.openai.OpenAI
) -> None:
    asked = ASK | {"stream": True, "return_progress": True, "timings_per_token": True}
    events = _events(service.http.post("/v1/responses", json=asked).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"] > 0
    counts = [event["timings"]["predicted_n"] for event in events if event["type"].endswith("text.delta")]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= events[-1]["timings"]["predicted_n"] == 6
    assert events[-1]["timings"] == events[-1]["response"]["timings"]

    whole = client.responses.create(model="tiny", input="hello", max_output_tokens=6)
    told = whole.model_dump()["timings"]  # a field more than the SDK's model has
    assert told["predicted_n"] == 6
    assert client.responses.retrieve(whole.id).model_dump()["timings"] == told
    assert not any(
        "timings" in event
        for event in _events(service.http.post("/v1/responses", json=ASK | {"stream": True}).text)[:-1]
    )


def test_the_events_of_a_response_are_numbered_and_nested(service: RunningService) -> None:
    asked = ASK | {"input": f"<say>One.{CALL}</say>", "tools": [TOOL], "max_output_tokens": 500, "stream": True}
    events = _events(service.http.post("/v1/responses", json=asked).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events if not event["type"].endswith("delta")]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    items_done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items_done == events[-1]["response"]["output"]
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]


@pytest.mark.slow
def test_the_official_client_asks_and_streams(client: sdk.openai.OpenAI) -> None:
    asked = ASK | {"input": "<say>good day</say>", "max_output_tokens": 50}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text == "good day"
    assert final.status == whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.input_tokens == len("<user><say>good day</say>\n<assistant>")


def test_an_answer_cut_short_is_incomplete(client: sdk.openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="<say>one two three</say>", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_whole_loop_with_a_tool_runs(client: sdk.openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": f"<say>{CALL}</say>"}]
    with client.responses.stream(model="tiny", input=items, tools=[TOOL]) as stream:
        first = stream.get_final_response()
    (call,) = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Åre"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "<say>It snows.</say>"}
    items += [call.model_dump(exclude_none=True, exclude={"parsed_arguments"}), result]
    assert client.responses.create(model="tiny", input=items, tools=[TOOL]).output_text == "It snows."


def test_items_become_messages_with_calls_joined_to_the_text_before_them() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        call,
        call | {"call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    system, developer, user, assistant, result = _messages(instructions="Be kind.", input=items)
    assert [system, developer] == [{"role": "system", "content": text} for text in ("Be kind.", "Be brief.")]
    assert user["content"] == "Go."
    assert assistant["content"] == "Wait."
    assert [item["id"] for item in assistant["tool_calls"]] == ["a", "b"]
    assert result == {"role": "tool", "content": "1", "tool_call_id": "a"}


def test_two_texts_in_a_row_are_two_answers_each_with_the_reasoning_before_it() -> None:
    """A client that goes on with what was cut, or joins two chats, has both."""
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    texts = [{"role": "assistant", "content": text} for text in ("One.", "Two.", "Three.")]
    one, two, three = _messages(input=[{"role": "user", "content": "Go."}, *texts[:2], thought, texts[2]])[1:]
    assert [each["content"] for each in (one, two, three)] == ["One.", "Two.", "Three."]
    assert ["reasoning_content" in each for each in (one, two, three)] == [False, False, True]


def test_tools_that_are_no_functions_are_left_out() -> None:
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "mcp", "tools": []}, TOOL]
    offer = ResponsesBody.model_validate(ASK | {"tools": tools}).turn().tools
    assert [tool.name for tool in offer.tools] == ["get_weather"]


def test_a_function_and_a_form_can_be_required() -> None:
    chosen = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}}
    assert ResponsesBody.model_validate(ASK | chosen).turn().tools.only == "get_weather"
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    assert ResponsesBody.model_validate(ASK | {"text": form}).turn().answer_format == ANY_OBJECT


def test_templates_receive_the_reasoning_effort() -> None:
    turn = ResponsesBody.model_validate(ASK | {"reasoning": {"effort": "low"}}).turn()
    assert turn.thinking == Thinking(effort="low")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "template"),
        ({"input": []}, "empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "picture"),
        ({"text": {"format": {"type": "yaml"}}}, "yaml"),
        ({"tool_choice": "sometimes"}, "sometimes"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "web_search"),
    ],
)
def test_unsupported_fields_that_would_change_the_answer_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(RequestError, match=word):
        ResponsesBody.model_validate(ASK | change).turn()


@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_event_are_a_status(service: RunningService, stream: bool) -> None:
    response = service.http.post("/v1/responses", json=ASK | {"input": "x" * 5000, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert service.http.post("/v1/responses", json=ASK | {"model": "nope", "stream": stream}).status_code == 404
