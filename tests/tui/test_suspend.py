"""Ctrl+Z in a real terminal with a shell."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from quantizer.system.process import python_command
from tests.tui.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.slow

PROMPT = "shell> "


@pytest.fixture
def environment(tmp_path):
    theirs = ("LOCALLLM_", "HF_", "XDG_", "NO_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | {
        "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"),
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_DATA_DIR": str(tmp_path / "data"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_MODEL": "guide",
        "LOCALLLM_PORT": "0",
        "PS1": PROMPT,
    }


def test_ctrl_z_goes_to_the_shell_and_fg_comes_back_to_the_same_screen(environment, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "welcome-seen").touch()
    app = shlex.join(python_command("tui"))
    with PseudoTerminal.app(environment, tmp_path, program=["/bin/sh", "-i"]) as terminal:
        terminal.sees(PROMPT)
        terminal.types(f"{app}\n")
        terminal.sees("Type a question", "guide")
        terminal.types("a draft")
        terminal.sees("a draft")
        left = len(terminal.written)
        terminal.types("\x1a")
        terminal.sees("Stopped", PROMPT, since=left)
        assert "\x1b[?1049l" in terminal.written[left:]  # the shell has its own screen again
        terminal.types("echo $((40+2))\n")
        terminal.sees("42", since=left)
        returned = len(terminal.written)
        terminal.types("fg\n")
        terminal.sees("Type a question", "a draft", since=returned)
        terminal.types(" goes on")
        terminal.sees("goes on", since=returned)
        terminal.types("\x11")
        terminal.sees(PROMPT, since=returned)


def test_ctrl_z_stays_where_no_shell_could_bring_the_app_back(environment, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "welcome-seen").touch()
    with PseudoTerminal.app(environment, tmp_path) as terminal:
        terminal.sees("Type a question")
        terminal.types("\x1a")
        terminal.sees("no shell to go to")
        terminal.types("\x11")
        terminal.until(lambda: terminal.process.poll() is not None, "the app stays")
