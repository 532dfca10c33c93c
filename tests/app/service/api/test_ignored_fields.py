"""What of a request has no effect is told, by its path; what clients always send and is harmless is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.fields import Body
from app.service.api.llamacpp.routes import InfillBody, PromptBody
from app.service.api.ollama.requests import OllamaChatBody, PullBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from tests.app.running import RunningService
from tests.app.service.api.agents.sessions import recorded as agent_requests

ASK = [{"role": "user", "content": "x"}]
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
API = Path(__file__).parent


def ignored(kind: type[Body], fields: dict[str, Any]) -> list[str]:
    return list(kind.model_validate(fields).ignored_fields(fields))


# Fields that change the answer where they are supported: as the dialects' own documents have them.
TOLD: list[tuple[type[Body], dict[str, Any], list[str]]] = [
    (ChatCompletionBody, {"messages": ASK, "min_tokens": 3}, ["min_tokens"]),
    (ChatCompletionBody, {"messages": [{"role": "user", "content": "x", "weight": 1}] * 3}, ["messages.weight"]),
    (ChatCompletionBody, {"messages": ASK, "samplers": ["temperature", "top_k"]}, ["samplers"]),
    (
        ResponsesBody,
        {
            "input": "x",
            "tools": [
                {"type": "web_search", "external_web_access": True},
                {"type": "shell", "environment": {"type": "x"}},
            ],
        },
        ["tools.web_search", "tools.shell"],
    ),
    (
        MessagesBody,
        {
            "messages": ASK,
            "max_tokens": 1,
            "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
        },
        ["tools.web_search"],
    ),
    (
        OllamaChatBody,
        {"messages": ASK, "options": {"penalize_newline": True, "num_ctx": 4096}},
        ["options.penalize_newline"],
    ),
    (PullBody, {"model": "x", "insecure": True}, ["insecure"]),
    (PromptBody, {"prompt": "x", "n_discard": 3}, ["n_discard"]),
    (InfillBody, {"input_prefix": "x", "samplers": ["top_p", "top_k"]}, ["samplers"]),
]


@pytest.mark.parametrize(("kind", "fields", "paths"), TOLD)
def test_a_field_without_effect_is_told_once_by_its_path(
    kind: type[Body], fields: dict[str, Any], paths: list[str]
) -> None:
    assert ignored(kind, fields) == paths


MCP = [{"type": "url", "url": "x", "name": "x"}]
SOURCE = {"type": "text", "media_type": "text/plain", "data": "x"}
CITED = {"role": "user", "content": [{"type": "document", "source": SOURCE, "citations": {"enabled": True}}]}
EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}]}
AUDIO_ONLY = {"role": "assistant", "audio": {"id": "a1"}}
OLD_CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
# Fields that would change the answer, by the route that refuses them.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": ASK, "web_search_options": {}}, "web_search_options"),
    ("/v1/chat/completions", {"messages": ASK, "modalities": ["text", "audio"]}, "modalities"),
    ("/v1/chat/completions", {"messages": ASK, "audio": {"voice": "x"}}, "audio"),
    ("/v1/chat/completions", {"messages": ASK, "functions": [{"name": "f"}]}, "functions"),
    ("/v1/chat/completions", {"messages": [*ASK, OLD_CALL, *ASK]}, "messages.function_call"),
    ("/v1/chat/completions", {"messages": [*ASK, AUDIO_ONLY, *ASK]}, "messages.audio"),
    ("/v1/chat/completions", {"messages": ASK, "moderation": {"model": "x"}}, "moderation"),
    ("/v1/chat/completions", {"messages": ASK, "documents": [{"text": "x"}]}, "documents"),
    ("/v1/chat/completions", {"messages": ASK, "chat_template": "x"}, "chat_template"),
    ("/v1/chat/completions", {"messages": [{**ASK[0], "images": ["x"]}]}, "messages.images"),
    ("/v1/completions", {"prompt": "x", "best_of": 3}, "best_of"),
    ("/v1/responses", {"input": "x", "moderation": {"model": "x"}}, "moderation"),
    ("/v1/responses", {"input": "x", "context_management": [{"type": "compaction"}]}, "context_management"),
    ("/v1/responses", {"input": "x", "reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ("/v1/responses/input_tokens", {"input": "x", "personality": "friendly"}, "personality"),
    ("/v1/messages", {"messages": ASK, "max_tokens": 1, "mcp_servers": MCP}, "mcp_servers"),
    ("/v1/messages", {"messages": ASK, "max_tokens": 1, "container": {"skills": []}}, "container"),
    ("/v1/messages", {"messages": ASK, "max_tokens": 1, "context_management": EDITS}, "context_management"),
    (
        "/v1/messages",
        {"messages": [CITED], "max_tokens": 1},
        "messages.content.citations",
    ),
    (
        "/v1/messages",
        {"messages": ASK, "max_tokens": 1, "output_config": {"task_budget": {"type": "tokens", "total": 9}}},
        "output_config.task_budget",
    ),
    ("/v1/messages/count_tokens", {"messages": ASK, "mcp_servers": MCP}, "mcp_servers"),
    ("/api/generate", {"prompt": "x", "width": 512}, "width"),
    ("/api/create", {"model": "y", "from": "tiny", "messages": [{**ASK[0], "images": ["x"]}]}, "messages.images"),
]


@pytest.mark.parametrize(("path", "body", "name"), REFUSED)
def test_a_field_that_would_change_the_answer_is_refused_by_its_path(
    service: RunningService, path: str, body: dict[str, Any], name: str
) -> None:
    response = service.http.post(path, json={"model": "tiny", **body})
    assert response.status_code == 400, response.text
    assert f"{name} is not supported." in response.text


def test_the_refused_field_is_the_errors_param(service: RunningService) -> None:
    response = service.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": ASK, "audio": {"voice": "x"}}
    )
    assert response.json()["error"]["param"] == "audio"


def test_a_field_is_refused_behind_any_number_of_ignored_ones() -> None:
    fields = {"messages": ASK, **{f"unknown{number}": 1 for number in range(200)}, "functions": [{"name": "f"}]}
    with pytest.raises(RequestError, match="functions"):
        ignored(ChatCompletionBody, fields)


# What clients send with each request. Sources: openai 3.54 and its types, the AI SDK 6, LiteLLM 1.106, Claude Code 2.1,
# Open WebUI and Continue (options of loading), llama.vim and llama-server's own web page.
QUIET: list[tuple[type[Body], dict[str, Any]]] = [
    (
        ChatCompletionBody,
        {
            "messages": [
                {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "id": "m1"},
                {"role": "user", "name": "Ann", "content": [CACHED]},
            ],
            "user": "me",
            "metadata": {"a": "b"},
            "store": True,
            "service_tier": "auto",
            "prompt_cache_key": "x",
            "safety_identifier": "x",
            "modalities": ["text"],
            "prediction": {"type": "content", "content": "x"},
            "function_call": "auto",
            "web_search_options": None,
            "stream_options": {"include_usage": True, "include_obfuscation": True},
            "verbosity": "medium",
            "frob": None,
            "nicate": [],
            "logit_thing": 0,
            "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}},
            },
        },
    ),
    (
        MessagesBody,
        {
            "messages": [{"role": "user", "content": [{**CACHED, "citations": [{"type": "char_location"}]}]}],
            "max_tokens": 1,
            "metadata": {"user_id": "x"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "x"}, "eager_input_streaming": True}],
        },
    ),
    (OllamaChatBody, {"messages": ASK, "options": {"num_ctx": 8192, "num_gpu": 99, "num_thread": 4, "use_mmap": True}}),
    (PromptBody, {"prompt": "x", "cache_prompt": True, "id_slot": 3, "samplers": ["dry", "top_k", "temperature"]}),
]


@pytest.mark.parametrize(("kind", "fields"), QUIET)
def test_what_clients_always_send_is_not_worth_a_word(kind: type[Body], fields: dict[str, Any]) -> None:
    assert ignored(kind, fields) == []


RECORDED = [json.loads(line) for line in (API / "recorded" / "tools_with_schema.jsonl").read_text().splitlines()]
BODIES: dict[str, type[Body]] = {
    "/v1/messages": MessagesBody,
    "/v1/responses": ResponsesBody,
    "/v1/chat/completions": ChatCompletionBody,
    "/api/chat": OllamaChatBody,
}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: f"{recorded['client']} {recorded['path']}")
def test_recorded_requests_of_clients_are_told_nothing(recorded: dict[str, Any]) -> None:
    assert ignored(BODIES[recorded["path"]], recorded["body"]) == []


# The tools that Codex would have OpenAI run; the model is not offered them.
TOLD_AGENTS = {"codex": ["tools.web_search"]}


@pytest.mark.parametrize("name", ["aider", "claude_code", "codex", "opencode", "qwen_code"])
def test_coding_agents_are_told_of_tools_that_are_not_offered_and_of_nothing_else(name: str) -> None:
    requests = [request for request in agent_requests(name).values() if isinstance(request, dict)]
    assert requests
    for request in requests:
        kind = BODIES[request["path"].partition("?")[0]]
        assert ignored(kind, request["body"]) == TOLD_AGENTS.get(name, [])


def test_a_session_of_llama_vim_is_told_nothing() -> None:
    lines = (API.parents[2] / "clients" / "llama_vim.jsonl").read_text().splitlines()
    for line in lines:
        assert ignored(InfillBody, json.loads(line)["body"]) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASK, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 2}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        ("/api/chat", {"messages": ASK, "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": "x", "options": {"num_predict": 2}}),
        ("/completion", {"prompt": "x", "n_predict": 2}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_dialect_tells_it_whole_and_streamed(
    service: RunningService, path: str, body: dict[str, Any], stream: bool
) -> None:
    response = service.http.post(path, json={"model": "tiny", **body, "stream": stream, "frobnicate": True})
    told = "localllm ignores frobnicate."
    assert response.headers["x-localllm-warning"] == told
    assert json.dumps([told]).replace(" ", "") in response.text.replace(" ", "")


def test_a_client_that_sends_nothing_strange_gets_no_warning(service: RunningService) -> None:
    response = service.http.post(
        "/v1/chat/completions", json={"messages": ASK, "max_tokens": 2, "user": "me", "tools": [TOOL]}
    )
    assert "x-localllm-warning" not in response.headers
    assert "warnings" not in response.json()
