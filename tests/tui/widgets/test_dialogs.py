"""The help screen."""

from __future__ import annotations

from app.client.fake import ScriptedClient
from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS


async def test_f1_shows_every_command_and_escape_returns(open_app):
    async with open_app(ScriptedClient(), size=(120, 96)) as user:
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
