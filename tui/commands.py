"""Everything the chat can be told to do: one table that feeds key bindings, slash commands, palette and help.

Owns names, keys and words. What a command does is a method of the screen, seen here as `ChatActions`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from textual.binding import Binding, BindingType

__all__ = ["COMMANDS", "EXAMPLES", "ChatActions", "Command", "bindings", "command_named", "slash_command"]

EXAMPLES = ("What can you do?", "How do I quantize a model?", "Which keys does this app have?")


class ChatActions(Protocol):
    """What the commands need of the chat screen."""

    def ask(self, question: str) -> None: ...

    async def stop_answer(self) -> None: ...

    async def answer_again(self) -> None: ...

    async def new_chat(self) -> None: ...

    def copy_answer(self) -> None: ...

    async def set_system_prompt(self, text: str) -> None: ...

    def scroll_pages(self, n_pages: int) -> None: ...

    def show_help(self) -> None: ...

    def change_theme(self) -> None: ...

    def quit(self) -> None: ...


Handler = Callable[[ChatActions, str], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One thing that the chat can be told to do. `keys` are Textual's names, comma-separated; `slash` is the word after
    the slash, and `argument` names what may follow it. The palette shows the commands that have a slash word."""

    id: str
    title: str
    tooltip: str
    run: Handler
    keys: str = ""
    slash: str = ""
    argument: str = ""


COMMANDS: tuple[Command, ...] = (
    Command(
        id="stop",
        title="Stop the answer",
        tooltip="Stop the answer and keep what came so far",
        keys="escape",
        slash="stop",
        run=lambda chat, _: chat.stop_answer(),
    ),
    Command(
        id="retry",
        title="Answer again",
        tooltip="Ask the last question again",
        keys="ctrl+r",
        slash="retry",
        run=lambda chat, _: chat.answer_again(),
    ),
    Command(
        id="new",
        title="New chat",
        tooltip="Start an empty chat; this one is kept",
        keys="ctrl+n",
        slash="new",
        run=lambda chat, _: chat.new_chat(),
    ),
    Command(
        id="copy",
        title="Copy the last answer",
        tooltip="Put the last answer on the clipboard",
        keys="ctrl+y",
        slash="copy",
        run=lambda chat, _: chat.copy_answer(),
    ),
    Command(
        id="system",
        title="System prompt",
        tooltip="Tell the model how to behave in this chat; alone, show it",
        slash="system",
        argument="TEXT",
        run=lambda chat, text: chat.set_system_prompt(text),
    ),
    Command(
        id="page-up",
        title="Scroll up",
        tooltip="Read what was said before",
        keys="pageup",
        run=lambda chat, _: chat.scroll_pages(-1),
    ),
    Command(
        id="page-down",
        title="Scroll down",
        tooltip="Go towards the latest answer",
        keys="pagedown",
        run=lambda chat, _: chat.scroll_pages(1),
    ),
    Command(
        id="theme",
        title="Theme",
        tooltip="Choose other colours",
        slash="theme",
        run=lambda chat, _: chat.change_theme(),
    ),
    Command(
        id="help",
        title="Help",
        tooltip="Show every key and command",
        keys="f1",
        slash="help",
        run=lambda chat, _: chat.show_help(),
    ),
    Command(
        id="quit",
        title="Quit",
        tooltip="Leave; the service stops too if this app started it",
        keys="ctrl+q",
        slash="quit",
        run=lambda chat, _: chat.quit(),
    ),
    Command(
        id="example-1",
        title=EXAMPLES[0],
        tooltip=f"Ask “{EXAMPLES[0]}”",
        keys="f2",
        run=lambda chat, _: chat.ask(EXAMPLES[0]),
    ),
    Command(
        id="example-2",
        title=EXAMPLES[1],
        tooltip=f"Ask “{EXAMPLES[1]}”",
        keys="f3",
        run=lambda chat, _: chat.ask(EXAMPLES[1]),
    ),
    Command(
        id="example-3",
        title=EXAMPLES[2],
        tooltip=f"Ask “{EXAMPLES[2]}”",
        keys="f4",
        run=lambda chat, _: chat.ask(EXAMPLES[2]),
    ),
)

_BY_ID = {command.id: command for command in COMMANDS}
_BY_SLASH = {command.slash: command for command in COMMANDS if command.slash}


def command_named(command_id: str) -> Command:
    """Return the command with this id. Raises KeyError when there is none."""
    return _BY_ID[command_id]


def slash_command(line: str) -> tuple[Command | None, str] | None:
    """Return the command of a line such as `/system Be brief` and its argument, None as command when there is no such
    word, and None alone when the line is no command at all (`/etc/hosts` is not)."""
    word, _, argument = line.strip().partition(" ")
    if not (word.startswith("/") and word[1:].isalpha() and "\n" not in word):
        return None
    return _BY_SLASH.get(word[1:].lower()), argument.strip()


def bindings() -> list[BindingType]:
    """Return the key bindings of all commands. They have priority, since a text field takes some of the keys itself."""
    return [
        Binding(
            key,
            f"command('{command.id}')",
            command.title,
            id=command.id,
            tooltip=command.tooltip,
            priority=True,
        )
        for command in COMMANDS
        if (key := command.keys)
    ]
