"""One question in the words of each chat API, and its answer in the same words for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["ALL", "WITH_SCHEMA", "WITH_STOPS", "WITH_TOOLS", "Answered", "Asked", "ask", "streamed"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, answered greedily. A `tool` must be called; `schema` is the answer's."""

    question: str
    system: str = ""
    max_tokens: int = 24
    stop: str = ""
    schema: dict[str, Any] | None = None
    tool: dict[str, Any] | None = None
    is_thinking_off: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.question}]


@dataclass(frozen=True, slots=True)
class Answered:
    text: str
    n_prompt_tokens: int
    n_output_tokens: int
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class _Dialect:
    path: str
    body: Callable[[Asked], dict[str, Any]]
    read: Callable[[dict[str, Any]], Answered]
    delta: Callable[[dict[str, Any]], str]  # the text of an event of a stream, empty where it has none


def _openai(asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "default",
        "messages": asked.messages,
        "max_tokens": asked.max_tokens,
        "temperature": 0,
    }
    if asked.stop:
        body["stop"] = asked.stop
    if asked.schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked.schema}}
    if asked.tool:
        body |= {"tools": [{"type": "function", "function": asked.tool}], "tool_choice": "required"}
    if asked.is_thinking_off:
        body["reasoning_effort"] = "none"
    return body


def _from_openai(answer: dict[str, Any]) -> Answered:
    message, usage = answer["choices"][0]["message"], answer["usage"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = tuple((function["name"], json.loads(function["arguments"])) for function in functions)
    assert not message.get("reasoning_content")
    return Answered(message["content"] or "", usage["prompt_tokens"], usage["completion_tokens"], calls)


def _responses(asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "default",
        "input": asked.question,
        "max_output_tokens": asked.max_tokens,
        "temperature": 0,
    }
    if asked.system:
        body["instructions"] = asked.system
    if asked.schema:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": asked.schema}}
    if asked.tool:
        body |= {"tools": [{"type": "function", **asked.tool}], "tool_choice": "required"}
    if asked.is_thinking_off:
        body["reasoning"] = {"effort": "none"}
    return body


def _from_responses(answer: dict[str, Any]) -> Answered:
    items, usage = answer["output"], answer["usage"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    assert {item["type"] for item in items} <= {"message", "function_call"}
    return Answered("".join(texts), usage["input_tokens"], usage["output_tokens"], tuple(calls))


def _anthropic(asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": asked.question}],
        "max_tokens": asked.max_tokens,
        "temperature": 0,
    }
    if asked.system:
        body["system"] = asked.system
    if asked.stop:
        body["stop_sequences"] = [asked.stop]
    if asked.schema:
        body["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
    if asked.tool:
        tool = {name: value for name, value in asked.tool.items() if name != "parameters"}
        body |= {"tools": [tool | {"input_schema": asked.tool["parameters"]}], "tool_choice": {"type": "any"}}
    if asked.is_thinking_off:
        body["thinking"] = {"type": "disabled"}
    return body


def _from_anthropic(answer: dict[str, Any]) -> Answered:
    blocks, usage = answer["content"], answer["usage"]
    calls = tuple((block["name"], block["input"]) for block in blocks if block["type"] == "tool_use")
    assert {block["type"] for block in blocks} <= {"text", "tool_use"}
    n_prompt_tokens = sum(usage[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_"))
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return Answered(text, n_prompt_tokens, usage["output_tokens"], calls)


def _ollama(asked: Asked) -> dict[str, Any]:
    options = {"num_predict": asked.max_tokens, "temperature": 0} | ({"stop": [asked.stop]} if asked.stop else {})
    body: dict[str, Any] = {"model": "default", "stream": False, "options": options}
    if asked.schema:
        body["format"] = asked.schema
    if asked.is_thinking_off:
        body["think"] = False
    return body


def _ollama_chat(asked: Asked) -> dict[str, Any]:
    return _ollama(asked) | {"messages": asked.messages}


def _ollama_generate(asked: Asked) -> dict[str, Any]:
    return _ollama(asked) | {"prompt": asked.question} | ({"system": asked.system} if asked.system else {})


def _from_ollama(answer: dict[str, Any]) -> Answered:
    assert not answer.get("message", {}).get("thinking")
    text = answer["message"]["content"] if "message" in answer else answer["response"]
    return Answered(text, answer["prompt_eval_count"], answer["eval_count"])


def _lmstudio(asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "default",
        "input": asked.question,
        "max_output_tokens": asked.max_tokens,
        "temperature": 0,
    }
    if asked.system:
        body["system_prompt"] = asked.system
    if asked.is_thinking_off:
        body["reasoning"] = "off"
    return body


def _from_lmstudio(answer: dict[str, Any]) -> Answered:
    items, stats = answer["output"], answer["stats"]
    assert {item["type"] for item in items} == {"message"}
    return Answered("".join(item["content"] for item in items), stats["input_tokens"], stats["total_output_tokens"])


_DIALECTS = {
    "openai": _Dialect(
        "/v1/chat/completions",
        _openai,
        _from_openai,
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ())),
    ),
    "responses": _Dialect(
        "/v1/responses",
        _responses,
        _from_responses,
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "anthropic": _Dialect(
        "/v1/messages",
        _anthropic,
        _from_anthropic,
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
    ),
    "ollama chat": _Dialect("/api/chat", _ollama_chat, _from_ollama, lambda event: event["message"]["content"]),
    "ollama generate": _Dialect("/api/generate", _ollama_generate, _from_ollama, lambda event: event["response"]),
    "lmstudio": _Dialect(
        "/api/v1/chat",
        _lmstudio,
        _from_lmstudio,
        lambda event: event["content"] if event["type"] == "message.delta" else "",
    ),
    "lmstudio v0": _Dialect(
        "/api/v0/chat/completions",
        _openai,
        _from_openai,
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ())),
    ),
}

ALL = tuple(_DIALECTS)
WITH_STOPS = tuple(name for name in ALL if name not in {"responses", "lmstudio"})
WITH_SCHEMA = tuple(name for name in ALL if name != "lmstudio")
WITH_TOOLS = ("openai", "responses", "anthropic", "lmstudio v0")  # those that can demand a call


def ask(http: httpx.Client, dialect: str, asked: Asked, **fields: Any) -> Answered:
    """Return the answer in `dialect`, with more `fields` in the request's body."""
    form = _DIALECTS[dialect]
    response = http.post(form.path, json=form.body(asked) | fields)
    assert response.status_code == 200, response.text
    return form.read(response.json())


def streamed(http: httpx.Client, dialect: str, asked: Asked) -> str:
    """Return the text of the answer, joined from the events of a stream."""
    form = _DIALECTS[dialect]
    response = http.post(form.path, json=form.body(asked) | {"stream": True})
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    return "".join(form.delta(json.loads(line)) for line in lines if line.startswith("{"))
