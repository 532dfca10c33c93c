from __future__ import annotations

import json
import os
import tomllib

import pytest

from app.cli.verbs.serve import EDITORS, editor_settings
from tests.app.cli.in_process import run_localllm

URL = "http://127.0.0.1:11500"


@pytest.mark.parametrize("editor", EDITORS)
def test_every_editor_is_pointed_at_the_service(editor: str) -> None:
    text = editor_settings(editor, URL, "coder")
    assert URL.removeprefix("http://") in text
    assert "{url}" not in text
    assert "{model}" not in text
    assert editor in {"zed", "llama.vim"} or "coder" in text, "these choose among the models that they find"


def test_lines_in_a_known_form_are_in_that_form() -> None:
    assert tomllib.loads(editor_settings("codex", URL, "coder"))["model_provider"] == "localllm"
    _, line = editor_settings("zed", URL, "coder").splitlines()
    assert json.loads(f"{{{line}}}")["language_models"]["ollama"]["api_url"] == URL


def test_they_are_printed_and_nothing_is_served() -> None:
    done = run_localllm(os.environ, "serve", "--editor", "aider", "--port", "1234", "--model", "coder")
    assert done.returncode == 0
    assert done.stdout == "OLLAMA_API_BASE=http://127.0.0.1:1234 aider --model ollama_chat/coder\n"
