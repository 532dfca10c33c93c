"""The options of verbs that let a model use tools, and what they ask for.

Owns names and checks that need no server. Which tools there are is known once their servers are.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.tools.approval import ToolSettings
    from app.tools.backend import ToolBackend

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COMMANDS = "commands"  # the server whose calls are allowed by their beginning only


@dataclass(frozen=True, slots=True)
class RequestedTools:
    """Names of servers and tools to switch on, folders as absolute paths, names of those that need no question,
    beginnings of commands that need none, and the most rounds (None: as the chat has it)."""

    enabled: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    max_rounds: int | None = None

    def __bool__(self) -> bool:
        return self != RequestedTools()

    async def applied(self, settings: ToolSettings, tools: ToolBackend) -> ToolSettings:
        """Return `settings` with these switched on, and allowed as they are now. Raises UsageError for an unknown
        name."""
        from app.chat.tool_switches import allowing_rules, switched, with_folder

        servers = await tools.servers()
        for name in self.enabled:
            settings = switched(settings, servers, name, is_switched_on=True)
        for folder in self.folders:
            settings = with_folder(settings, folder)
        if self.max_rounds is not None:
            settings = replace(settings, max_rounds=self.max_rounds)
        if self.allowed or self.commands:
            rules = allowing_rules(await tools.offered(settings), self.allowed, self.commands)
            settings = replace(settings, rules=tuple(dict.fromkeys((*settings.rules, *rules))))
        return settings


def tool_options(command: _Command) -> _Command:
    """Give `command` what says which tools the model may use."""
    options = (
        click.option(
            "--tools",
            metavar="NAMES",
            multiple=True,
            help="Let the model use tools: files, commands, web, and servers of mcp.json; separated by commas.",
        ),
        click.option(
            "--folder",
            "folders",
            metavar="PATH",
            multiple=True,
            help="Folder that tools read and write in; repeatable.",
        ),
        click.option(
            "--allow", "allowed", metavar="NAMES", multiple=True, help="Do not ask for these servers or tools."
        ),
        click.option(
            "--allow-command",
            "allowed_commands",
            metavar="TEXT",
            multiple=True,
            help="Do not ask for commands that begin so; repeatable.",
        ),
        click.option("--max-rounds", type=click.IntRange(1, 1000), help="Rounds of calls in an answer.  [default: 25]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def requested_tools(
    tools: Sequence[str],
    folders: Sequence[str],
    allowed: Sequence[str],
    allowed_commands: Sequence[str],
    max_rounds: int | None,
) -> RequestedTools:
    """Return what the options ask for. Raises UsageError for a folder that does not exist, a command that cannot be
    split into words, and for all commands at once."""
    names = _names(allowed)
    if any(name.partition("/")[0] == _COMMANDS for name in names):
        raise UsageError("Commands cannot be allowed all at once.", 'Give how they begin: --allow-command "pytest -q".')
    commands = tuple(_words(text) for text in allowed_commands)
    return RequestedTools(_names(tools), tuple(map(_folder, folders)), names, commands, max_rounds)


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in texts for name in text.replace(",", " ").split()))


def _folder(text: str) -> str:
    try:
        path = Path(text).expanduser().resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):
        is_folder = False
    if not is_folder:
        raise UsageError(f"There is no folder {text}.", "Give one that exists.")
    return str(path)


def _words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be split into words: {error}.", "Close its quotation marks.") from error
    if not words:
        raise UsageError("The beginning of a command is empty.", 'Give one: --allow-command "pytest -q".')
    return words
