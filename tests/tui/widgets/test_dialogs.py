"""The help screen, and the field of a question."""

from __future__ import annotations

import pytest

from quantizer.system.errors import UserError
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS
from tui.widgets.dialogs import InputDialog


async def test_f1_shows_every_command_and_escape_returns(open_app):
    async with open_app(ScriptedClient(), size=(120, 120)) as user:
        await user.presses("f1")
        await user.sees("Ctrl+J, Shift+Enter", "Search commands, models, chats and settings")
        rows = [row.split("│")[1] for row in user.screen_text.split("\n") if row.count("│") == 2]
        shown = " ".join(" ".join(rows).split())  # a long one takes two rows
        assert [each.tooltip for each in (*CHAT_COMMANDS, *APP_COMMANDS) if each.tooltip not in shown] == []
        await user.sees("/system TEXT", "Ctrl+Q  /quit", "Page Up")
        await user.presses("escape")
        await user.no_longer_sees("Keys and commands")


async def test_help_is_reached_by_its_slash_word(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("/help")
        await user.sees("Keys and commands")


@pytest.mark.parametrize("size", [(80, 24), (60, 18), (40, 14), (20, 6)])
async def test_a_question_with_a_long_explanation_keeps_its_field_in_sight(open_app, size):
    async def refuses(line: str) -> None:
        raise UserError(f"nothing is called {line}")

    async with open_app(ScriptedClient(), size=size) as user:
        user.app.push_screen(InputDialog("Which?", refuses, value="typed", explanation="word " * 60))
        await user.sees("word", "typed")
        await user.presses("enter")
        await user.sees("nothing is")
        assert "typed" in user.screen_text.replace("called typed", "")
