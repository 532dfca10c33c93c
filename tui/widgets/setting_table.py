"""The table of settings: name, value, where it comes from; at its end what is only to be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.events import Resize
from textual.widgets import DataTable

from app.terminal import printable_line
from tui.settings_book import SettingRow

__all__ = ["SettingTable"]

_NAME_CELLS, _ORIGIN_CELLS = 15, 11
_LEAST_VALUE_CELLS = 16
_MARGIN = 2


class SettingTable(DataTable[Text]):
    """A row each, by the name of its setting; facts have no name."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True)
        self._rows: tuple[SettingRow, ...] = ()
        self._facts: Mapping[str, str] = {}

    @property
    def setting_name(self) -> str | None:
        """The setting under the cursor, None for a fact."""
        if not self.row_count:
            return None
        key = self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value
        return key if key in {row.name for row in self._rows} else None

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def show(self, rows: Sequence[SettingRow], facts: Mapping[str, str]) -> None:
        """Show these settings, and after them what is only to be known."""
        self._rows, self._facts = tuple(rows), facts
        self._draw()

    def _draw(self) -> None:
        row_index = self.cursor_row
        self.clear(columns=True)
        rest = self.size.width - _NAME_CELLS - 2 * _MARGIN - 1
        has_origin = rest - _ORIGIN_CELLS - _MARGIN >= _LEAST_VALUE_CELLS
        self.add_column(Text("Setting"), width=_NAME_CELLS)
        self.add_column(Text("Value"), width=max(1, rest - (_ORIGIN_CELLS + _MARGIN) * has_origin))
        if has_origin:
            self.add_column(Text("From"), width=_ORIGIN_CELLS)
        for row in self._rows:
            cells = (_cell(row.name), _cell(_value(row)), _cell(row.origin))
            self.add_row(*cells[: len(self.columns)], key=row.name)
        for name, text in self._facts.items():
            self.add_row(*(_cell(name), _cell(text), _cell(""))[: len(self.columns)], key=f"fact {name}")
        self.move_cursor(row=row_index)


def _value(row: SettingRow) -> str:
    if row.upcoming is None:
        return row.value
    return f"{row.value} → {row.upcoming}{': L loads it so' if row.is_of_load else ' at the next start'}"


def _cell(text: str) -> Text:
    return Text(printable_line(text), no_wrap=True, overflow="ellipsis")
