from __future__ import annotations

import pytest

from app.service.models.model_catalog import is_placeholder

# Each is the name that the client sends by default, or the one that its documentation tells users to take.
SENT_BY_CLIENTS = {
    "gpt-3.5-turbo": "langchain-openai 1.0, Haystack 2",
    "gpt-4o-mini": "LlamaIndex 0.14, AI SDK's examples",
    "gpt-4o": "openai-agents 0.4, pydantic-ai 1.x",
    "gpt-4.1-2025-04-14": "openai 2.x",
    "gpt-5-codex": "Codex 0.50",
    "gpt-5.1-codex-max": "Codex 0.60",
    "o4-mini": "aider 0.86",
    "chatgpt-4o-latest": "openai 2.x",
    "text-embedding-ada-002": "langchain-openai 1.0",
    "text-embedding-3-small": "LlamaIndex 0.14",
    "claude-sonnet-4-5-20250929": "Claude Code 2.0",
    "claude-haiku-4-5-20251001": "Claude Code 2.0, its small model",
    "claude-opus-4-1[1m]": "Claude Code 2.0",
    "sonnet": "aider 0.86, an alias",
    "anthropic/claude-sonnet-4": "opencode 1.0 by OpenRouter",
    "openrouter/anthropic/claude-3.7-sonnet": "LiteLLM 1.79",
    "gemini-2.5-flash": "Open WebUI's task model",
    "models/gemini-2.0-flash": "google-genai",
    "qwen3-coder-plus": "qwen-code 0.2",
    "coder-model": "qwen-code 0.4",
    "deepseek-chat": "aider 0.86",
    "codestral-latest": "minuet-ai.nvim 0.8",
    "mistral-small": "Haystack 2",
    "local-model": "LM Studio's examples",
    "lmstudio": "Continue 1.2",
    "llama-server": "llama.vscode",
    "llama.cpp": "Continue 1.2, llama.cpp",
    "default": "llama-cpp-python's examples, instructor",
    "default_model": "vLLM's clients",
    "gpt-4:latest": "Ollama's clients append a tag",
    "openai/gpt-4o": "LiteLLM 1.79",
    "openai/local-model": "smolagents 1.22",
    "my-model": "documentation",
    "model-1": "documentation",
    "test": "gptel",
    "localllm": "documentation",
}
# What a person may have, have had, or mean to fetch: another model must not answer for it.
OF_MODELS = """
gpt-oss:20b gpt-oss-20b gpt-oss openai/gpt-oss-120b gpt-j-6b gpt2 llama llama2 llama3.2 llama3.2:3b llama-3.2-1b qwen3
qwen3:8b qwen2.5-coder qwen3-coder:30b Qwen/Qwen3-8B-GGUF deepseek-coder deepseek-r1 mistral mistral-nemo kimi-k2
mistral-7b-instruct-v0.3.Q4_K_M.gguf nomic-embed-text gemma3 phi-4 codellama tinyllama mario coder guide nope unknown
claudia my-mario sonnet-13b haiku-writer x.gguf model.gguf ./model.gguf /models/model.gguf 7b 2
"""


@pytest.mark.parametrize("name", SENT_BY_CLIENTS)
def test_a_name_that_clients_send_unasked_means_no_model(name: str) -> None:
    assert is_placeholder(name)
    assert is_placeholder(name.upper())


@pytest.mark.parametrize("name", OF_MODELS.split())
def test_a_name_that_a_local_model_can_have_means_that_model(name: str) -> None:
    assert not is_placeholder(name)


def test_a_long_name_is_judged_at_once() -> None:
    assert not is_placeholder("my-" * 100_000)
    assert not is_placeholder("openai/" * 100_000)
