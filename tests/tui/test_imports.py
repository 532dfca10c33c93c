"""Imports at startup: nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REPORT = "import sys, {module}; print(*sys.modules)"
_OURS = {"app", "offload", "quantizer", "tui"}
_MOST_OF_OURS = 128  # a module takes 0.5 to 3 ms of CPU
# What the first frame of the chat does not draw, by package or module.
_DRAWN_LATER = (
    "app.chat.titles",
    "app.client",
    "app.library",
    "app.protocol.library",
    "app.protocol.plan",
    "app.protocol.status",
    "offload",
    "quantizer.gguf.header",
    "tui.chat.options_screen",
    "tui.chat.transcript.comparison",
    "tui.chat.transcript.find",
    "tui.chat.transcript.shell_view",
    "tui.history.chat_list",
    "tui.models.rows",
    "tui.models.screen",
    "tui.models.welcome",
    "tui.palette",
    "tui.widgets.help",
)


def _modules_of(module: str) -> set[str]:
    command = [sys.executable, "-c", _REPORT.format(module=module)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def _imported_by(module: str) -> set[str]:
    return {name.partition(".")[0] for name in _modules_of(module)}


@pytest.mark.slow
def test_first_frame_of_the_app_needs_no_engine_http_or_markdown():
    heavy = {"llama_cpp", "numpy", "httpx", "starlette", "gguf", "markdown_it", "PIL", "textual_image"}
    assert not heavy & _imported_by("tui.run")


@pytest.mark.slow
def test_first_frame_of_the_app_imports_only_what_it_draws():
    ours = {name for name in _modules_of("tui.run") if name.partition(".")[0] in _OURS}
    later = {name for name in ours if any(name == each or name.startswith(f"{each}.") for each in _DRAWN_LATER)}
    assert not later
    assert len(ours) <= _MOST_OF_OURS


def test_deciding_between_app_and_command_line_imports_no_user_interface():
    assert not {"textual", "rich", "httpx", "numpy", "llama_cpp", "asyncio"} & _imported_by("tui.__main__")


@pytest.mark.slow
def test_a_chat_in_the_scrollback_needs_no_widgets():
    assert not {"textual", "markdown_it", "llama_cpp", "numpy", "starlette"} & _imported_by("tui.inline.session")
