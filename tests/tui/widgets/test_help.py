"""The help screen."""

from __future__ import annotations

from app.client.fake import ScriptedClient
from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS


async def test_f1_shows_every_command_and_escape_returns(sitting):
    async with sitting(ScriptedClient(), size=(120, 72)) as person:
        await person.presses("f1")
        await person.sees("Ctrl+J, Shift+Enter", *(command.tooltip for command in (*CHAT_COMMANDS, *APP_COMMANDS)))
        await person.sees("/system TEXT", "Ctrl+Q  /quit", "Page Up")
        await person.presses("escape")
        await person.no_longer_sees("Keys and commands")


async def test_help_is_reached_by_its_slash_word(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.asks("/help")
        await person.sees("Keys and commands")
