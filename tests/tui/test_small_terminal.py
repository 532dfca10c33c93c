"""Narrow terminals, and those that become wide again. test_snapshots.py makes every screen small."""

from __future__ import annotations

import os
import sys
from itertools import cycle

import pytest

from tests.app.client.scripted_client import ScriptedClient
from tests.patience import PATIENCE_S
from tests.tui.model_scenes import client_with_models

pytestmark = pytest.mark.slow


async def test_every_smaller_terminal_is_laid_out_as_the_smallest(open_app):
    """What holds for every screen is therefore tested with few of these sizes."""
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        for width, height in (*((width, 24) for width in range(1, 14)), (80, 1), (80, 2), (80, 3), (80, 4), (1, 1)):
            await user.pilot.resize_terminal(width, height)
            await user.pilot.pause(0.02)
            laid_out = (max(width, 12), max(height, 4))
            assert (user.app.size, user.app.screen.size) == (laid_out, laid_out)
            assert user.app.failure is None, (width, height)


@pytest.mark.parametrize(  # 2 is laid out as 12, and nothing is drawn
    ("width", "key"), zip(cycle((2, 12)), ["f5", "f6", "f7", "f8", "f9", "f10", "ctrl+p", "f1"], strict=False)
)
async def test_a_screen_can_be_opened_and_left_in_a_narrow_terminal(open_app, width, key):
    async with open_app(client_with_models(), size=(width, 24)) as user:
        await user.presses(key)
        await user.types("/go")
        await user.presses("down", "escape", "escape")
        await user.pilot.resize_terminal(80, 24)
        await user.until(lambda: "Chat" in user.screen_text or "guide" in user.screen_text, "nothing is drawn")


async def test_what_is_typed_in_a_narrow_terminal_is_kept(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        await user.pilot.resize_terminal(1, 24)
        await user.types("hello /w @x")
        await user.presses("ctrl+j")
        await user.pilot.resize_terminal(80, 24)
        await user.sees("hello /w @x")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
def test_a_window_made_narrow_and_wide_again_shows_the_same_and_ends_narrow(tmp_path):
    from tests.tui.pseudo_terminal import PseudoTerminal

    environment = {
        **os.environ,
        **{f"LOCALLLM_{name}_DIR": str(tmp_path / name) for name in ("DATA", "CACHE")},
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_PORT": "0",
    }
    (tmp_path / "DATA").mkdir()
    (tmp_path / "DATA" / "welcome-seen").touch()
    with PseudoTerminal.app(environment, tmp_path) as terminal:
        terminal.sees("Type a question")
        terminal.types("a draft")
        terminal.sees("a draft")
        terminal.resizes(2, 24)
        terminal.sees("↔")
        before = len(terminal.written)
        terminal.resizes(80, 24)
        terminal.sees("a draft", since=before)
        terminal.resizes(3, 24)
        terminal.sees("↔", since=before)
        terminal.types("\x11")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in terminal.written
