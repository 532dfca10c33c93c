"""The help screen: every key and command of the screen below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.commands import Command
from tui.settings.keymap import keys_of
from tui.widgets.command_screen import CommandScreen

__all__ = ["HelpScreen"]

_KEY_NAMES = {"escape": "Esc", "pageup": "Page Up", "pagedown": "Page Down", "delete": "Del", "slash": "/"}


class HelpScreen(ModalScreen[None]):
    """Lists the keys, custom ones first; scrollable, closed with Esc."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close", id="help-close", tooltip="Go back"),
    ]

    def __init__(self, about: CommandScreen, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._about = about
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll() as panel:
            panel.border_title = "Keys and commands"
            panel.border_subtitle = "Esc closes"
            yield Static(_table(self._about, self._keys))


def _table(about: CommandScreen, keys: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for label, text in _rows(about, keys):
        table.add_row(Text(label, style="bold"), Text(text))
    return table


def _rows(about: CommandScreen, keys: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        *((_shown(binding.key), binding.tooltip) for binding in about.KEYS),
        *((_label(command, keys), command.tooltip) for command in about.all_commands()),
        ("Ctrl+P", "Search the commands by name"),
    ]


def _label(command: Command, keys: Mapping[str, str]) -> str:
    slash = f"/{command.slash} {command.argument}".rstrip() if command.slash else ""
    return "  ".join(part for part in (_shown(keys_of(command, keys)), slash) if part)


def _shown(keys: str) -> str:
    """Return Textual's key names in display form: `ctrl+j,shift+enter` is Ctrl+J, Shift+Enter."""
    return ", ".join("+".join(map(_key_name, key.split("+"))) for key in keys.split(",") if key)


def _key_name(part: str) -> str:
    return _KEY_NAMES.get(part, part.capitalize())
