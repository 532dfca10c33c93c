"""A screen whose keys, words and help come from its table of commands, and from the app's.

Owns the way from a key to what it does. Knows no command itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isawaitable
from typing import Any, ClassVar

from textual.binding import Binding
from textual.screen import Screen

from app.terminal import printable
from tui.commands import APP_COMMANDS, Command, CommandTable

__all__ = ["CommandScreen"]

_SAID_FOR_S = 4.0
_WARNED_FOR_S = 10.0


class CommandScreen(Screen[None]):
    """A place to stay in. A class that has a TABLE of its own sets `BINDINGS = TABLE.bindings()` too; KEYS are the
    keys of its widgets, for help."""

    TABLE: ClassVar[CommandTable[Any]]
    KEYS: ClassVar[tuple[Binding, ...]] = ()
    BINDINGS = APP_COMMANDS.bindings()

    def all_commands(self) -> Iterator[Command[Any]]:
        """Yield what can be done here: the screen's own first."""
        yield from self.TABLE
        yield from APP_COMMANDS

    async def action_command(self, command_id: str) -> None:
        """Do what a key or a click asks for."""
        await self.run_command(command_id)

    def action_click(self, command_id: str) -> None:
        """Do what a click asks for, once the click is over: what was clicked may be taken away by it."""
        self.call_later(self.run_command, command_id)

    async def run_command(self, command_id: str, argument: str = "") -> None:
        """Do what the command of this id does; KeyError where there is none."""
        if own := self.TABLE.find(command_id):
            outcome = own.run(self, argument)
        elif everywhere := APP_COMMANDS.find(command_id):
            outcome = everywhere.run(self.app, argument)
        else:
            raise KeyError(command_id)
        if isawaitable(outcome):
            await outcome

    def command_of_word(self, word: str) -> Command[Any] | None:
        """Return what `/word` means here."""
        return self.TABLE.of_word(word) or APP_COMMANDS.of_word(word)

    def say(self, text: str, for_s: float = _SAID_FOR_S) -> None:
        """Show `text` in a corner for `for_s` seconds."""
        self.notify(printable(text), markup=False, timeout=for_s)

    def warn(self, text: str) -> None:
        """Show in a corner, for longer, what went wrong and what to do."""
        self.notify(printable(text), severity="error", markup=False, timeout=_WARNED_FOR_S)
