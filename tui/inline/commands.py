"""The commands of a chat in the scrollback: which of the app's it has, by their slash words, and its help.

Owns the choice. What a command does is a method of `tui.inline.chat`; words, aliases and meanings are the app's.
"""

from __future__ import annotations

from collections.abc import Iterator

from tui.chat.commands import CHAT_COMMANDS
from tui.commands import APP_COMMANDS, Command, CommandTable, slash_line

_TABLES = (CHAT_COMMANDS, APP_COMMANDS)
_IDS = (
    "retry",
    "continue",
    "edit",
    "editor",
    "new",
    "model",
    "compact",
    "compare",
    "figures",
    "system",
    "options",
    "think",
    "preset",
    "template",
    "prompt",
    "thoughts",
    "tools",
    "undo-step",
    "redo-step",
    "copy",
    "help",
    "quit",
)
COMMANDS: tuple[Command, ...] = tuple(
    command for command_id in _IDS for table in _TABLES if (command := table.find(command_id)) is not None
)
_COMMANDS = CommandTable(*COMMANDS)
SLASH_WORDS = tuple(word for command in COMMANDS for word in (command.slash, *command.also) if word.isalpha())

_KEYS = (
    ("Ctrl+C", "Stop the answer and keep the text so far; at the prompt: clear the line, and say how to quit"),
    ("Ctrl+D", "Quit"),
    ("Up, Down", "Recall earlier questions"),
    ('"""', "Start and end a question of several lines"),
    ("@FILE", "Attach a file, pages of a PDF with @FILE#3-5; Tab completes its name"),
    ("PATH", "A dropped or pasted path alone: attach the file to the next question"),
)
_BREAK = ("Alt+Enter", "Start a new line")
_FORGETTING = {"new": "Start a new chat; this one is discarded (also /clear)"}


def parse_command(text: str) -> tuple[Command | None, str, str] | None:
    """Return command, word and argument of a text such as `/system Be brief`; None for a question. The command is None
    for an unknown word."""
    line = slash_line(text)
    return None if line is None else (_COMMANDS.of_word(line[0]), *line)


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
        tooltip = command.help_text if is_saved else _FORGETTING.get(command.id, command.help_text)
        yield f"/{command.slash} {command.argument}".rstrip(), tooltip
