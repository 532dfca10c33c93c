"""A model's card: what its file says of it and what this machine has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.terminal import printable_line

__all__ = ["CardScreen"]


class CardScreen(ModalScreen[None]):
    """Labels and texts; scrolls where the terminal is small, and goes away with Esc."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c,enter", "dismiss(None)", "Close", id="card-close", tooltip="Go back"),
    ]

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = printable_line(title)
        self._rows = rows

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for label, text in self._rows:
            table.add_row(Text(printable_line(label), style="bold"), Text(printable_line(text)))
        with VerticalScroll(classes="panel") as panel:
            panel.border_title = Text(self._title).markup
            panel.border_subtitle = "Esc closes"
            yield Static(table)
