"""What of a request has no effect is told, by its path; what clients always send and is harmless is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.service.api.anthropic.requests import MessagesBody
from app.service.api.fields import Body
from app.service.api.llamacpp.routes import InfillBody, PromptBody
from app.service.api.ollama.requests import OllamaChatBody, OllamaGenerateBody, PullBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
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
    (ChatCompletionBody, {"messages": ASK, "verbosity": "low"}, ["verbosity"]),
    (
        ChatCompletionBody,
        {"messages": ASK, "web_search_options": {"a": 1}, "min_tokens": 3},
        ["web_search_options", "min_tokens"],
    ),
    (
        ChatCompletionBody,
        {"messages": ASK, "modalities": ["text", "audio"], "audio": {"voice": "x"}},
        ["modalities", "audio"],
    ),
    (ChatCompletionBody, {"messages": [{"role": "user", "content": "x", "weight": 1}] * 3}, ["messages.weight"]),
    (ChatCompletionBody, {"messages": ASK, "samplers": ["temperature", "top_k"]}, ["samplers"]),
    (CompletionBody, {"prompt": "x", "best_of": 3}, ["best_of"]),
    (
        ResponsesBody,
        {
            "input": "x",
            "text": {"verbosity": "low"},
            "tools": [
                {"type": "web_search", "external_web_access": True},
                {"type": "shell", "environment": {"type": "x"}},
            ],
        },
        ["text.verbosity", "tools.web_search", "tools.shell"],
    ),
    (
        MessagesBody,
        {
            "messages": ASK,
            "max_tokens": 1,
            "mcp_servers": [{"url": "x"}],
            "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
        },
        ["mcp_servers", "tools.web_search"],
    ),
    (
        OllamaChatBody,
        {"messages": ASK, "options": {"penalize_newline": True, "num_ctx": 4096}},
        ["options.penalize_newline"],
    ),
    (OllamaGenerateBody, {"prompt": "x", "width": 512}, ["width"]),
    (PullBody, {"model": "x", "insecure": True}, ["insecure"]),
    (PromptBody, {"prompt": "x", "n_discard": 3, "post_sampling_probs": True}, ["n_discard", "post_sampling_probs"]),
    (InfillBody, {"input_prefix": "x", "samplers": ["top_p", "top_k"]}, ["samplers"]),
]


@pytest.mark.parametrize(("kind", "fields", "paths"), TOLD)
def test_a_field_without_effect_is_told_once_by_its_path(
    kind: type[Body], fields: dict[str, Any], paths: list[str]
) -> None:
    assert ignored(kind, fields) == paths


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
            "messages": [{"role": "user", "content": [CACHED]}],
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
