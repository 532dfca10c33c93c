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
        value_cells = self.size.width - _NAME_CELLS - _ORIGIN_CELLS - 3 * _MARGIN - 1
        self.add_column(Text("Setting"), width=_NAME_CELLS)
        self.add_column(Text("Value"), width=max(_LEAST_VALUE_CELLS, value_cells))
        self.add_column(Text("From"), width=_ORIGIN_CELLS)
        for row in self._rows:
            self.add_row(_cell(row.name), _cell(_value(row)), _cell(row.origin), key=row.name)
        for name, text in self._facts.items():
            self.add_row(_cell(name), _cell(text), _cell(""), key=f"fact {name}")
        self.move_cursor(row=row_index)


def _value(row: SettingRow) -> str:
    if row.upcoming is None:
        return row.value
    return f"{row.value} → {row.upcoming}{': L loads it so' if row.is_of_load else ' at the next start'}"


def _cell(text: str) -> Text:
    return Text(printable_line(text), no_wrap=True, overflow="ellipsis")
