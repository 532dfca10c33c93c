"""Command tables: one row defines a command's keys, slash word, palette entry, footer and help.

Owns the form of a table and the commands of every screen. The implementations are methods of the screen or the app,
typed as a protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tui.navigation import FEATURES

if TYPE_CHECKING:
    from textual.binding import BindingType

__all__ = ["APP_COMMANDS", "AppActions", "Command", "CommandTable", "slash_line"]

Actions = TypeVar("Actions")


class AppActions(Protocol):
    """The methods of the app that its commands call."""

    def go_to(self, feature_id: str) -> Awaitable[None]: ...

    def chat_with_newest(self) -> Awaitable[None]: ...

    def show_help(self) -> None: ...

    def change_theme(self) -> None: ...

    def quit_app(self) -> None: ...


@dataclass(frozen=True, kw_only=True)  # no slots: a frozen generic dataclass cannot have them
class Command(Generic[Actions]):
    """One command. `keys` are Textual's names, comma-separated; `slash` is the word after the slash, and `argument`
    names its optional argument.

    A key that `has_priority` precedes a text field; the footer shows a command that `is_shown`, the palette one that
    `is_listed`.
    """

    id: str
    title: str
    tooltip: str
    run: Callable[[Actions, str], Awaitable[None] | None]
    keys: str = ""
    slash: str = ""
    argument: str = ""
    has_priority: bool = True
    is_shown: bool = False
    is_listed: bool = True


@dataclass(frozen=True)
class CommandTable(Generic[Actions]):
    """The commands of one screen, in the order of its help."""

    commands: tuple[Command[Actions], ...]
    _by_id: dict[str, Command[Actions]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_id.update({command.id: command for command in self.commands})

    def __iter__(self) -> Iterator[Command[Actions]]:
        return iter(self.commands)

    def find(self, command_id: str) -> Command[Actions] | None:
        """Return the command with this id."""
        return self._by_id.get(command_id)

    def of_word(self, word: str) -> Command[Actions] | None:
        """Return the command with this slash word."""
        return next((command for command in self.commands if command.slash and command.slash == word), None)

    def bindings(self) -> list[BindingType]:
        """Return the key bindings of all commands with keys."""
        return [_binding(command, "command", command.has_priority) for command in self.commands if command.keys]

    def bindings_at_once(self) -> list[BindingType]:
        """Return bindings for a widget, for the keys that a text field would consume. They run before the next key is
        dispatched, which may change the focus."""
        return [
            _binding(command, "screen.command", has_priority=True)
            for command in self.commands
            if command.keys and not command.has_priority
        ]


def _binding(command: Command[Any], action: str, has_priority: bool) -> BindingType:
    from textual.binding import Binding  # a chat in the scrollback does not need Textual

    return Binding(
        command.keys,
        f"{action}('{command.id}')",
        command.title,
        show=command.is_shown,
        id=command.id,
        tooltip=command.tooltip,
        priority=has_priority,
    )


def slash_line(line: str) -> tuple[str, str] | None:
    """Return word and argument of a line such as `/system Be brief`; None if it is no command (`/etc/hosts`)."""
    word, _, argument = line.strip().partition(" ")
    if not (word.startswith("/") and word[1:].isalpha() and "\n" not in word):
        return None
    return word[1:].lower(), argument.strip()


def _go_to(feature_id: str, app: AppActions, _: str) -> Awaitable[None]:
    return app.go_to(feature_id)


APP_COMMANDS: CommandTable[Any] = CommandTable(
    (
        *(
            Command[AppActions](
                id=f"go-{feature.id}",
                title=feature.title,
                tooltip=feature.tooltip,
                keys=feature.key,
                slash=feature.id,
                run=partial(_go_to, feature.id),
            )
            for feature in FEATURES
        ),
        Command[AppActions](
            id="talk-newest",
            title="Chat with the new model",
            tooltip="Chat with the model that was downloaded last",
            keys="ctrl+t",
            run=lambda app, _: app.chat_with_newest(),
        ),
        Command[AppActions](
            id="theme",
            title="Theme",
            tooltip="Change the colour theme",
            slash="theme",
            run=lambda app, _: app.change_theme(),
        ),
        Command[AppActions](
            id="help",
            title="Help",
            tooltip="Show every key and command of this screen",
            keys="f1",
            slash="help",
            run=lambda app, _: app.show_help(),
        ),
        Command[AppActions](
            id="quit",
            title="Quit",
            tooltip="Quit; the service stops too if this app started it",
            keys="ctrl+q",
            slash="quit",
            run=lambda app, _: app.quit_app(),
        ),
    )
)
