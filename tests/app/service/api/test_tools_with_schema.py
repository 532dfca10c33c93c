"""Tools together with a schema of the answer, as clients really send them: a call, or an answer of the schema.

`recorded/tools_with_schema.jsonl` has the bodies that the clients named there sent to a logging server for one
question, with a tool get_weather(city) and an answer of {city, degrees}.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from app.common.answer_text import ReasoningTags
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.generation import Generation, answer_parser
from app.service.tools.formats import GENERIC
from app.service.tools.parser import ToolCalling
from tests.app.gbnf_texts import Grammar
from tests.app.running import RunningService
from tests.app.spoken_answers import spoken

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parent / "recorded" / "tools_with_schema.jsonl").read_text().splitlines()
]
QUESTION = "Weather in Åre?"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'
ANSWER = '{"city":"Åre","degrees":-4}'
BODIES = {
    "/v1/messages": MessagesBody,
    "/v1/responses": ResponsesBody,
    "/v1/chat/completions": ChatCompletionBody,
    "/api/chat": OllamaChatBody,
}


def name_of(recorded: dict[str, Any]) -> str:
    is_streamed = " streamed" if recorded["body"].get("stream") else ""
    return f"{recorded['client']} {recorded['path']}{is_streamed}"


@pytest.fixture(params=RECORDED, ids=name_of)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def asked(recorded: dict[str, Any], says: str, **changes: Any) -> dict[str, Any]:
    """Return the recorded body, whose question makes the fake model say `says`."""
    question = json.dumps(f"<say>{says}</say>", ensure_ascii=False)[1:-1]
    return json.loads(json.dumps(recorded["body"], ensure_ascii=False).replace(QUESTION, question)) | changes


def received(path: str, body: dict[str, Any], service: RunningService) -> tuple[str, list[tuple[str, Any]], int]:
    """Return text, calls and number of text deltas of an answer, whole or streamed."""
    response = service.http.post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return (*READ_WHOLE[path](response.json()), 0)
    events = [
        json.loads(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line[:1] in "d{" and "{" in line
    ]
    return READ_STREAM[path](events)


def whole_chat(answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    message = answer["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return message["content"] or "", [(item["name"], json.loads(item["arguments"])) for item in functions]


def whole_response(answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    return "".join(texts), [(item["name"], json.loads(item["arguments"])) for item in calls]


def whole_message(answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    return "".join(texts), [(block["name"], block["input"]) for block in calls]


def whole_ollama(answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    functions = [call["function"] for call in answer["message"].get("tool_calls", [])]
    return answer["message"]["content"], [(item["name"], item["arguments"]) for item in functions]


def streamed_chat(events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]], int]:
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    texts = [text for delta in deltas if (text := delta.get("content"))]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    names = [name for item in functions if (name := item.get("name"))]
    arguments = "".join(item.get("arguments", "") for item in functions)
    return "".join(texts), [(names[0], json.loads(arguments))] if names else [], len(texts)


def streamed_response(events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]], int]:
    n_deltas = sum(event["type"] == "response.output_text.delta" for event in events)
    return (*whole_response(events[-1]["response"]), n_deltas)


def streamed_message(events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]], int]:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    texts = [delta["text"] for delta in deltas if delta["type"] == "text_delta"]
    names = [event["content_block"]["name"] for event in events if event.get("content_block", {}).get("name")]
    arguments = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    return "".join(texts), [(names[0], json.loads(arguments))] if names else [], len(texts)


def streamed_ollama(lines: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]], int]:
    texts = [text for line in lines if (text := line["message"]["content"])]
    calls = [call for line in lines for call in whole_ollama(line)[1]]
    return "".join(texts), calls, len(texts)


READ_WHOLE = {
    "/v1/chat/completions": whole_chat,
    "/v1/responses": whole_response,
    "/v1/messages": whole_message,
    "/api/chat": whole_ollama,
}
READ_STREAM = {
    "/v1/chat/completions": streamed_chat,
    "/v1/responses": streamed_response,
    "/v1/messages": streamed_message,
    "/api/chat": streamed_ollama,
}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_and_an_answer_of_the_schema_both_arrive(
    service: RunningService, recorded: dict[str, Any], is_streamed: bool
) -> None:
    path = recorded["path"]
    text, calls, _ = received(path, asked(recorded, CALL, stream=is_streamed), service)
    assert (text, calls) == ("", [("get_weather", {"city": "Åre"})])
    text, calls, n_deltas = received(path, asked(recorded, ANSWER, stream=is_streamed), service)
    assert (text, calls) == (ANSWER, [])
    assert n_deltas > 1 or not is_streamed, "an answer of a schema streams"


def test_the_engine_may_write_nothing_else(recorded: dict[str, Any]) -> None:
    """Of Anthropic's AI SDK provider, which makes a second tool of the schema and requires a call, it is two calls."""
    turn = BODIES[recorded["path"]].model_validate(recorded["body"]).turn()
    tags, calling = ReasoningTags("<think>", "</think>"), ToolCalling(GENERIC, turn.tools)
    request = turn.bound(Generation((turn.request,), tags, calling), "")
    assert request.sampling.calls is not None
    chance = random.Random(3)
    kinds = set()
    for _ in range(60):
        parsed = answer_parser(tags, calling).push(spoken(request.sampling.calls, chance), is_final=True)
        for call in parsed.calls:
            kinds.add(call.name)
            assert isinstance(json.loads(call.arguments)["city"], str)
        if not parsed.calls:
            kinds.add("the answer")
            assert isinstance(json.loads(parsed.text)["degrees"], int)
    assert kinds == (
        {"get_weather", "json"} if "ai-sdk/anthropic" in recorded["client"] else {"get_weather", "the answer"}
    )


@pytest.mark.parametrize(("choice", "kinds"), [("none", {"JSON"}), ("required", {"call"}), ("named", {"call"})])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_the_tool_choice_decides_which_of_the_two_it_is(path: str, choice: str, kinds: set[str]) -> None:
    body = next(item for item in RECORDED if item["path"] == path)["body"]
    turn = BODIES[path].model_validate(body | {"tool_choice": CHOICES[path][choice]}).turn()
    calling = ToolCalling(GENERIC, turn.tools) if turn.tools.tools else None
    request = turn.bound(Generation((turn.request,), tool_calling=calling), "")
    chance, calls, grammar = random.Random(4), request.sampling.calls, request.sampling.grammar
    texts = [(spoken(calls, chance) if calls else Grammar(grammar).sample(chance)).strip() for _ in range(30)]
    assert {"call" if text.startswith("<tool_call>") else "JSON" for text in texts} == kinds


FUNCTION = {"name": "get_weather"}
CHOICES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "none": "none",
        "required": "required",
        "named": {"type": "function", "function": FUNCTION},
    },
    "/v1/responses": {"none": "none", "required": "required", "named": {"type": "function", **FUNCTION}},
    "/v1/messages": {"none": {"type": "none"}, "required": {"type": "any"}, "named": {"type": "tool", **FUNCTION}},
}
