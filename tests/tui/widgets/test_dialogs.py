"""The help screen, and the field of a question."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from quantizer.system.errors import UserError
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS
from tui.widgets.dialogs import InputDialog

pytestmark = pytest.mark.slow


async def test_f1_shows_every_command_in_sections_and_escape_returns(open_app):
    async with open_app(ScriptedClient(), size=(120, 170)) as user:
        await user.presses("f1")
        await user.sees("Ctrl+J, Shift+Enter", "Search commands, models, chats and settings", "/help quantize")
        rows = [row.split("│")[1] for row in user.screen_text.split("\n") if row.count("│") == 2]
        shown = " ".join(" ".join(rows).split())  # a long one takes two rows
        assert [each.tooltip for each in (*CHAT_COMMANDS, *APP_COMMANDS) if each.tooltip not in shown] == []
        await user.sees("/system TEXT", "Ctrl+Q  /quit", "Page Up")
        titles = ["This screen", "The prompt", "Messages", "Everywhere", "Guide pages"]
        assert [row.strip() for row in rows if row.strip() in titles] == titles
        texts = ("Stop the answer and", "Quit; the", "Regenerate the last")
        columns = {row.index(text) for row in rows for text in texts if text in row}
        assert len(columns) == 1
        await user.presses("escape")
        await user.no_longer_sees("Keys and commands")


async def test_the_help_is_filtered_and_enter_opens_a_page_of_the_guide(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.presses("f8", "f1")
        await user.sees("This screen", "Cancel the job")
        await user.presses("slash", *"quantize")
        await user.sees("Convert and quantize")
        await user.no_longer_sees("Cancel the job")
        await user.presses("enter")
        await user.until(lambda: not isinstance(user.app.focused, Input), "the list has no keys")
        await user.presses("down", "enter")
        await user.no_longer_sees("Keys and commands")
        await user.presses("escape")
        await user.sees("Keys and commands")
        await user.presses("slash", "escape")
        await user.sees("Cancel the job")
        await user.presses("escape")
        await user.no_longer_sees("Keys and commands")


@pytest.mark.parametrize("size", [(80, 24), (40, 14), (20, 6)])
async def test_the_help_fits_any_terminal(open_app, size):
    async with open_app(ScriptedClient(), size=size) as user:
        await user.presses("f1")
        await user.sees("Keys and", "/ filter")


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
