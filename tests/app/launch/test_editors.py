from __future__ import annotations

import json
import tomllib

import pytest

from app.launch.agents import AGENTS
from app.launch.editors import EDITORS, context_advice, editor_settings

URL = "http://127.0.0.1:11500"
# Clients that choose among the models that they find.
CHOOSING = {"zed", "llama.vim", "llama.vscode", "jetbrains", "open-webui", "cherry-studio", "page-assist"}


@pytest.mark.parametrize("editor", EDITORS)
def test_every_editor_is_pointed_at_the_service(editor: str) -> None:
    text = editor_settings(editor, URL, "coder")
    assert URL.removeprefix("http://") in text
    assert "{url}" not in text
    assert "{model}" not in text
    assert "{ctx}" not in text
    assert editor in CHOOSING or "coder" in text


def test_lines_in_a_known_form_are_in_that_form() -> None:
    codex = tomllib.loads(editor_settings("codex", URL, "coder"))
    assert codex["model_provider"] == "localllm"
    assert codex["features"] == {"api_key_model_discovery": True}
    provider = codex["model_providers"]["localllm"]
    assert provider["model_catalog_url"] == f"{URL}/v1/models"
    assert provider["experimental_bearer_token"], "it reads no catalogue without a key"
    _, line = editor_settings("zed", URL, "coder").splitlines()
    assert json.loads(f"{{{line}}}")["language_models"]["ollama"]["api_url"] == URL


def test_an_agent_learns_how_long_the_context_is_and_compacts_in_time() -> None:
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536 claude" in editor_settings("claude-code", URL, "coder")
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=40960 claude" in editor_settings("claude-code", URL, "coder", 40960)
    assert tomllib.loads(editor_settings("codex", URL, "coder"))["model_context_window"] == 32768
    options = json.loads(editor_settings("opencode", URL, "coder", 20480))
    assert options["provider"]["localllm"]["models"]["coder"]["limit"]["context"] == 20480


@pytest.mark.parametrize(
    ("n_ctx", "advice"),
    [
        (0, "13,000 tokens and keeps 33,000 free: serve with --ctx 65536; without it the model is loaded again"),
        (40960, "more than --ctx 40960 holds: serve with --ctx 65536"),
        (49152, "--ctx 49152 holds them"),
        (65536, ""),
    ],
)
def test_what_an_agent_brings_is_told_with_the_context_that_it_needs(n_ctx: int, advice: str) -> None:
    assert advice in context_advice("claude-code", n_ctx)
    assert bool(advice) == bool(context_advice("claude-code", n_ctx))
    assert context_advice("zed", n_ctx) == ""


def test_agents_have_their_lines_from_the_table_of_agents() -> None:
    for agent in AGENTS:
        assert not agent.editor or agent.editor in EDITORS
