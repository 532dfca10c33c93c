"""Command tables: one row defines a command's keys, slash word, palette entry, footer and help.

Owns the form of a table, the features (screens of their own, each imported on the first visit) and the commands of
every screen. A command is a method of its screen, or of the app.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from tui.design.key_names import format_keys

if TYPE_CHECKING:
    from textual.binding import BindingType


HOME = "chat"
_HELP_LINES = ("?", "/?")


@dataclass(frozen=True, slots=True)
class Feature:
    """A screen to stay in, as `module:class`, constructed with the `AppContext`. `id` is also its slash word."""

    id: str
    title: str
    tooltip: str
    key: str
    screen: str

    def screen_class(self) -> type[Any]:
        """Import the screen's module and return its class: the first frame must not wait for the other features."""
        found: type[Any] = resolve_name(self.screen)
        return found

    def new_screen(self, app_context: object) -> Any:
        return self.screen_class()(app_context)


FEATURES = (
    Feature("chat", "Chat", "Chat with the model", "", "tui.chat.screen:ChatScreen"),
    Feature("chats", "Chats", "Find and reopen chats", "f5", "tui.history.screen:HistoryScreen"),
    Feature("models", "Models", "Choose, download, quantize and remove models", "f6", "tui.models.screen:ModelsScreen"),
    Feature("plan", "Plan", "See and change where a model's layers go, and its speed", "f7",
            "tui.plan.screen:PlanScreen"),
    Feature("jobs", "Jobs", "Monitor, cancel and retry jobs", "f8", "tui.jobs.screen:JobsScreen"),
    Feature("metrics", "Metrics", "Monitor and benchmark models", "f9", "tui.metrics.screen:MetricsScreen"),
    Feature("settings", "Settings", "View and change settings", "f10", "tui.settings.screen:SettingsScreen"),
    Feature("log", "Log", "Read the service's log", "", "tui.jobs.screen:LogScreen"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """The method that a command calls, with `values` and, if the command has an `argument`, the text after its slash
    word. `keys` are Textual's names, comma-separated; `also` are the slash words of other programs for it. A key that
    `has_priority` precedes a text field; the footer shows a command that `is_shown`, the palette one that
    `is_listed`. One that `takes_text` opens a field: where it does nothing, what is typed behind it must not run
    as keys."""

    id: str
    title: str
    tooltip: str
    method: str
    keys: str = ""
    slash: str = ""
    values: tuple[object, ...] = ()
    also: tuple[str, ...] = ()
    argument: str = ""
    has_priority: bool = True
    is_shown: bool = False
    is_listed: bool = True
    takes_text: bool = False

    @property
    def help_text(self) -> str:
        return f"{self.tooltip} (also /{', /'.join(self.also)})" if self.also else self.tooltip

    def bound_keys(self, custom: Mapping[str, str]) -> str:
        """Return the keys in effect, comma-separated: those of the `custom` keys by command id, else its own."""
        return custom.get(self.id, self.keys) if self.keys else ""

    def key_name(self, custom: Mapping[str, str]) -> str:
        """Return the first of the keys in effect as people write it: "Ctrl+N"."""
        return format_keys(self.bound_keys(custom).partition(",")[0])

    def run(self, target: object, argument: str = "") -> Awaitable[None] | None:
        arguments = (*self.values, argument) if self.argument else self.values
        outcome: Awaitable[None] | None = getattr(target, self.method)(*arguments)
        return outcome


def list_command(
    command_id: str,
    title: str,
    keys: str,
    tooltip: str,
    method: str,
    *,
    is_shown: bool = True,
    values: tuple[object, ...] = (),
    takes_text: bool = False,
) -> Command:
    """Return a command for a list: letters are its keys while no text field has the focus."""
    return Command(
        command_id,
        title,
        tooltip,
        method,
        keys,
        values=values,
        has_priority=False,
        is_shown=is_shown,
        takes_text=takes_text,
    )


class CommandTable:
    """The commands of one screen, in the order of its help."""

    def __init__(self, *commands: Command) -> None:
        self._commands = commands
        self._by_id = {command.id: command for command in commands}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands)

    def find(self, command_id: str) -> Command | None:
        return self._by_id.get(command_id)

    def of_word(self, word: str) -> Command | None:
        return next((command for command in self if word and word in (command.slash, *command.also)), None)

    def bindings(self) -> list[BindingType]:
        return [_binding(command, "command", command.has_priority) for command in self if command.keys]

    def bindings_at_once(self) -> list[BindingType]:
        """Return bindings for a widget, for the keys that a text field would consume. They run before the next key is
        dispatched, which may change the focus."""
        shared = (command for command in self if command.keys and not command.has_priority)
        return [_binding(command, "screen.command", has_priority=True) for command in shared]


def _binding(command: Command, action: str, has_priority: bool) -> BindingType:
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
    """Return word and argument of a line such as `/system Be brief`; None if it is no command (`/etc/hosts`). A lone
    question mark is a command too."""
    word, _, argument = line.strip().partition(" ")
    if line.strip() in _HELP_LINES:
        return "?", ""
    if not (word.startswith("/") and word[1:].isalpha() and "\n" not in word):
        return None
    return word[1:].lower(), argument.strip()


def unknown_command(word: str, commands: Iterable[Command], remedy: str) -> str:
    """Return the message about `/word`, with the most similar word of `commands`."""
    from difflib import get_close_matches  # only for a typing error

    words = [each for command in commands for each in (command.slash, *command.also) if each.isalpha()]
    similar = get_close_matches(word, words, n=1)
    question = f" Did you mean /{similar[0]}?" if similar else ""
    return f"Unknown command /{word}.{question} {remedy}"


_SUSPEND = Command("suspend", "Suspend", "Go to the shell; fg comes back", "suspend_to_shell", "ctrl+z")

APP_COMMANDS = CommandTable(
    *(Command(f"go-{each.id}", each.title, each.tooltip, "go_to", each.key, each.id, (each.id,)) for each in FEATURES),
    Command("talk-newest", "Chat with the new model", "Chat with the model that was downloaded last",
            "chat_with_newest", "ctrl+t"),
    Command("model", "Change the model", "Chat with another local model; without NAME, list the models",
            "choose_model", slash="model", argument="NAME"),
    Command("welcome", "Models for this machine", "Show this machine and download a model that suits it",
            "show_welcome", slash="welcome"),
    Command("notifications", "Notifications", "Show every notification of this session; Esc dismisses the line",
            "show_notifications", "alt+n", "notifications"),
    Command("theme", "Theme", "Change the colour theme; without NAME, choose from a list", "change_theme",
            slash="theme", argument="NAME"),
    Command("help", "Help", "Show every key and command of this screen", "show_help", "f1", "help", argument="TOPIC",
            also=("?",)),
    Command("interrupt", "Copy, stop or clear",
            "Copy the selection; else stop the answer; else clear the line; on an empty line twice: quit", "interrupt",
            "ctrl+c", is_listed=False),
    *(() if sys.platform == "win32" else (_SUSPEND,)),
    Command("quit", "Quit", "Quit; the service stops too if this app started it", "quit_app", "ctrl+q", "quit",
            also=("bye", "exit")),
)  # fmt: skip
