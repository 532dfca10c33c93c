"""The help screen: every key and command of the screen that it was called from, out of their tables."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.commands import Command
from tui.screens.command_screen import CommandScreen

__all__ = ["HelpScreen"]

_KEY_NAMES = {"escape": "Esc", "pageup": "Page Up", "pagedown": "Page Down", "delete": "Del", "slash": "/"}


class HelpScreen(ModalScreen[None]):
    """Lists the keys, scrolls where the terminal is small, and goes away with Esc."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close", id="help-close", tooltip="Go back"),
    ]

    def __init__(self, about: CommandScreen) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        with VerticalScroll() as panel:
            panel.border_title = "Keys and commands"
            panel.border_subtitle = "Esc closes"
            yield Static(_table(self._about))


def _table(about: CommandScreen) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for label, text in _rows(about):
        table.add_row(Text(label, style="bold"), Text(text))
    return table


def _rows(about: CommandScreen) -> list[tuple[str, str]]:
    return [
        *((_shown(binding.key), binding.tooltip) for binding in about.KEYS),
        *((_label(command), command.tooltip) for command in about.all_commands()),
        ("Ctrl+P", "Search the commands by name"),
    ]


def _label(command: Command[Any]) -> str:
    slash = f"/{command.slash} {command.argument}".rstrip() if command.slash else ""
    return "  ".join(part for part in (_shown(command.keys), slash) if part)


def _shown(keys: str) -> str:
    """Return Textual's key names as people write them: `ctrl+j,shift+enter` is Ctrl+J, Shift+Enter."""
    return ", ".join("+".join(map(_key_name, key.split("+"))) for key in keys.split(",") if key)


def _key_name(part: str) -> str:
    return _KEY_NAMES.get(part, part.capitalize())
