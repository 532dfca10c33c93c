"""Readers of what other programs send over a connection: events of engines, lists, refusals, messages of MCP servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.battery.fuzz.target import Form, Reader, Target, document

__all__ = ["TARGETS"]

_CLIENT = ("app.client", "app.common.answer_text", "app.common.prompt_pace", "app.protocol")


def _run(work: Callable[[bytes], Coroutine[Any, Any, None]]) -> Reader:
    return lambda data: asyncio.run(work(data))


def _engine_answer(_folder: Path) -> Reader:
    """Read the stream of an OpenAI-compatible engine. The first byte says whether it is llama.cpp's."""
    from app.client.connection import httpx
    from app.client.remote_engine import RemoteEngine
    from app.protocol.chat import Message

    async def work(data: bytes) -> None:
        transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=data))
        async with RemoteEngine("http://peer", "", transport) as engine:
            engine._is_llamacpp = len(data) % 2 == 1
            _check_answer([event async for event in engine.chat([Message("user", "?")], "m")])

    return _run(work)


def _own_answer(_folder: Path) -> Reader:
    from app.client.connection import httpx
    from app.client.service_client import ServiceClient
    from app.protocol.chat import Message
    from quantizer.system.errors import UserError

    async def work(data: bytes) -> None:
        transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=data))
        async with ServiceClient("http://service", "", transport) as client:
            try:
                _check_answer([event async for event in client.chat([Message("user", "?")], "m")])
            except UserError as error:  # with the remedy that the service gives
                assert error.cause

    return _run(work)


def _check_answer(events: list[Any]) -> None:
    """Check that what a chat gets of an answer has the types that it declares: it is stored, counted and formatted."""
    from app.protocol.chat import AnswerDelta, Completed, PromptProgress

    *pieces, last = events
    assert isinstance(last, Completed)
    assert isinstance(last.finish_reason, str), f"the reason is {last.finish_reason!r}"
    for name in ("n_prompt_tokens", "n_cached_tokens", "n_output_tokens", "n_drafted_tokens", "n_accepted_tokens"):
        assert type(getattr(last, name)) is int and getattr(last, name) >= 0, f"{name} is {getattr(last, name)!r}"
    for name in ("time_to_first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s", "tokens_per_pass", "saved_s"):
        value = getattr(last, name)
        assert isinstance(value, int | float) and -1e300 < value < 1e300, f"{name} is {value!r}"
    for piece in pieces:
        if isinstance(piece, PromptProgress):
            assert piece.n_read >= 0 and piece.n_tokens >= 0, f"a progress of {piece}"
            assert piece.left_s is None or 0 <= piece.left_s < 1e300, f"{piece.left_s} seconds left"
            continue
        assert isinstance(piece, AnswerDelta)
        assert isinstance(piece.text, str) and isinstance(piece.reasoning, str)
        for call in piece.calls:
            texts = (call.call_id, call.name, call.arguments)
            assert all(isinstance(each, str) for each in texts), f"a call {call}"


def _answers() -> list[bytes]:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    timings = {
        "predicted_n": 1,
        "prompt_per_second": 9.0,
        "predicted_per_second": 7.5,
        "draft_n": 1,
        "tokens_per_pass": 1.5,
    }
    call = {"index": 0, "id": "call00000", "function": {"name": "look", "arguments": '{"a": '}}
    progress = {"total": 9, "cache": 1, "processed": 4, "time_ms": 12.5, "left_ms": 20, "n_ahead": 1}

    def event(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "chatcmpl-1", "choices": [choice], "timings": timings, **fields}

    streams: list[list[dict[str, Any]]] = [
        [event({"content": "a<think>b"}), event({"content": "</think>c"}, "stop", usage=usage)],
        [event({"reasoning_content": "a"}), event({"tool_calls": [call]}), event({"tool_calls": [call]}, "tool_calls")],
        [{"prompt_progress": progress, "choices": []}, {"choices": [{"text": "a", "finish_reason": "length"}]}],
        [{"error": {"message": "no", "kind": "RequestError", "cause": "No.", "remedy": "Ask.", "details": {}}}],
    ]
    return [
        b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in stream) + b"data: [DONE]\n\n"
        for stream in streams
    ]


_ANSWER_WORDS = (
    "choices", "delta", "content", "tool_calls", "function", "arguments", "index", "id", "name", "usage", "timings",
    "prompt_progress", "error", "prompt_tokens", "completion_tokens", "predicted_per_second", "total", "left_ms",
    "machine", "finish_reason", "message", "reasoning", "prompt_tokens_details", "details", "data: [DONE]", "<think>",
)  # fmt: skip


def _engine_list(_folder: Path) -> Reader:
    """Read the list of models of an engine, and its refusal."""
    from app.client.connection import httpx
    from app.client.remote_engine import RemoteEngine
    from quantizer.system.errors import UserError

    async def work(data: bytes) -> None:
        status = 200 if len(data) % 4 else 400
        transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=data))
        async with RemoteEngine("http://peer", "", transport) as engine:
            try:
                found = await engine.status()
            except UserError as error:
                assert len(error.cause) < 600
                raise
            for model in found.models:
                assert isinstance(model.id, str) and type(model.n_ctx) is int and model.n_ctx >= 0

    return _run(work)


def _lists() -> list[bytes]:
    made: list[Any] = [
        {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}]},
        {"data": [{"id": "m", "max_model_len": 8192}, {"id": "n", "context_length": 1}]},
        {"error": {"message": "no", "code": 401}},
        {"error": "no"},
    ]
    return [json.dumps(each).encode() + b" " * number for number, each in enumerate(made)]


def _mcp_result(_folder: Path) -> Reader:
    """Read the results of a server: of a tool, a resource, a prompt, and lists of these."""
    from app.tools.mcp.config import ToolError
    from app.tools.mcp.listing import (
        listed_prompts,
        listed_resources,
        listed_tools,
        prompt_text,
        resource_content,
        result_output,
    )

    def read(data: bytes) -> None:
        raw = document(data)
        if not isinstance(raw, dict):
            return
        output = result_output(raw)
        assert isinstance(output.text, str) and isinstance(output.detail, str)
        with suppress(ToolError):
            assert isinstance(resource_content(raw), str | bytes)
        assert isinstance(prompt_text(raw), str)
        for name, listed in (("prompts", listed_prompts), ("resources", listed_resources)):
            entries = raw.get(name)
            if isinstance(entries, list):
                listed(entries)
        tools = raw.get("tools")
        if isinstance(tools, list):
            for tool in listed_tools("s", "identity", tools, 5.0).tools:
                assert tool.definition.name.startswith("s__")

    return read


def _results() -> list[bytes]:
    content = [
        {"type": "text", "text": "a"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "a://b", "text": "c"}},
        {"type": "resource_link", "uri": "a://b", "name": "n"},
    ]  # fmt: skip
    tool = {"name": "t", "title": "T", "description": "d", "inputSchema": {"type": "object"}, "annotations": {}}
    made = [
        {"content": content, "structuredContent": {"a": 1}, "isError": True},
        {"contents": [{"uri": "a://b", "blob": "AAAA"}], "messages": [{"role": "user", "content": content[0]}]},
        {"tools": [tool], "prompts": [{"name": "p", "arguments": [{"name": "x", "required": True}]}]},
        {"resources": [{"uri": "a://b", "name": "n", "mimeType": "text/plain"}]},
    ]
    return [json.dumps(each).encode() for each in made]


TARGETS = (
    Target("engine_answer", _engine_answer, _CLIENT, _answers, Form.EVENTS, _ANSWER_WORDS),
    Target("own_answer", _own_answer, _CLIENT, _answers, Form.EVENTS, _ANSWER_WORDS),
    Target("engine_list", _engine_list, _CLIENT, _lists, words=("data", "id", "meta", "n_ctx", "error", "message")),
    Target("mcp_result", _mcp_result, ("app.tools.mcp.listing",), _results),
)
