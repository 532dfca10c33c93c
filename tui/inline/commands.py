"""The commands of a chat in the scrollback: those of the app without a screen, by their slash words.

Owns their selection and the aliases from other programs. `tui.inline.chat` implements them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS, Command, slash_line

__all__ = ["COMMANDS", "SLASH_WORDS", "help_text", "needs_full_screen", "parse_command"]

_TABLES = (CHAT_COMMANDS, APP_COMMANDS)
_IDS = ("retry", "continue", "edit", "new", "system", "options", "preset", "thoughts", "copy", "help", "quit")
COMMANDS: tuple[Command, ...] = tuple(
    command for command_id in _IDS for table in _TABLES if (command := table.find(command_id)) is not None
)
SLASH_WORDS = tuple(command.slash for command in COMMANDS)

_ALSO = {"?": "help", "bye": "quit", "exit": "quit", "clear": "new"}  # as other prompts of this kind call them
_KEYS = (
    ("Ctrl+C", "Stop the answer and keep the text so far; at the prompt: clear the line"),
    ("Ctrl+D", "Quit"),
    ("Up, Down", "Recall earlier questions"),
    ('"""', "Start and end a question of several lines"),
    ("@FILE", "Attach a text file; Tab completes its name"),
)
_BREAK = ("Alt+Enter", "Start a new line")
_FORGETTING = {"new": "Start a new chat; this one is discarded"}


def parse_command(text: str) -> tuple[Command | None, str, str] | None:
    """Return command, word and argument of a text such as `/system Be brief`; None for a question. The command is None
    for an unknown word."""
    word, _, argument = text.strip().partition(" ")
    also = _ALSO.get(word[1:]) if word.startswith("/") else None
    line = (also, argument.strip()) if also else slash_line(text)
    if line is None:
        return None
    return next((command for command in COMMANDS if command.slash == line[0]), None), *line


def needs_full_screen(word: str) -> bool:
    """Return whether only the full screen has the command."""
    return any(table.of_word(word) for table in _TABLES)


def help_text(*, is_saved: bool, breaks_lines: bool) -> str:
    """Return commands and keys, one per line; `breaks_lines` if Alt+Enter is available."""
    rows = [*_rows(is_saved=is_saved), *_KEYS, *([_BREAK] if breaks_lines else [])]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {meaning}" for label, meaning in rows)


def _rows(*, is_saved: bool) -> Iterator[tuple[str, str]]:
    for command in COMMANDS:
        tooltip = command.tooltip if is_saved else _FORGETTING.get(command.id, command.tooltip)
        yield f"/{command.slash} {command.argument}".rstrip(), tooltip
