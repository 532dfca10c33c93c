"""Imports at startup: nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys

_REPORT = "import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"


def _imported_by(module: str) -> set[str]:
    command = [sys.executable, "-c", _REPORT.format(module=module)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_first_frame_of_the_app_needs_no_engine_http_or_markdown():
    heavy = {"llama_cpp", "numpy", "httpx", "starlette", "gguf", "markdown_it", "PIL", "textual_image"}
    assert not heavy & _imported_by("tui.run")


def test_deciding_between_app_and_command_line_imports_no_user_interface():
    assert not {"textual", "rich", "httpx", "numpy", "llama_cpp", "asyncio"} & _imported_by("tui.__main__")


def test_a_chat_in_the_scrollback_needs_no_widgets():
    assert not {"textual", "markdown_it", "llama_cpp", "numpy", "starlette"} & _imported_by("tui.inline.session")
