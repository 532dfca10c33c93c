from __future__ import annotations

import os

from tests.app.cli.in_process import run_localllm


def test_advice_is_no_part_of_the_settings() -> None:
    done = run_localllm(os.environ, "serve", "--editor", "claude-code", "--model", "coder")
    assert done.stdout.endswith("CLAUDE_CODE_AUTO_COMPACT_WINDOW=65536 claude\n")
    assert "serve with --ctx 65536" in done.stderr


def test_they_are_printed_and_nothing_is_served() -> None:
    done = run_localllm(os.environ, "serve", "--editor", "aider", "--port", "1234", "--model", "coder")
    assert done.returncode == 0
    assert done.stdout == "OLLAMA_API_BASE=http://127.0.0.1:1234 aider --model ollama_chat/coder\n"
