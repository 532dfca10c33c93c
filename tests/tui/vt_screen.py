"""A terminal's screen, computed from the bytes written to it: rows of letters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rich.cells import cell_len

__all__ = ["VtScreen"]

_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f]+)"
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
)


class VtScreen:
    """A screen of cells. A wide letter stands in its first cell and leaves the second one empty."""

    def __init__(self, n_columns: int, n_rows: int) -> None:
        self._n_columns = n_columns
        self._cells = [[" "] * n_columns for _ in range(n_rows)]
        self._row = self._column = 0
        self._unread = ""  # a sequence whose end has not come yet

    @property
    def text(self) -> str:
        """The rows, one a line, without the spaces at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._cells)

    def feed(self, written: str) -> None:
        """Take what was written; a sequence may come in several pieces."""
        written, end = self._unread + written, 0
        while token := _TOKEN.match(written, end):
            end = token.end()
            if text := token["text"]:
                self._put(text)
            elif moves := _SEQUENCES.get(token["final"] or token["control"] or ""):
                moves(self, [int(number or 0) for number in re.findall(r"\d+", token["parameters"] or "")])
        self._unread = written[end:]

    def _put(self, text: str) -> None:
        for letter in text:
            width = cell_len(letter)
            if not width and self._column:
                self._cells[self._row][self._column - 1] += letter  # it combines with the one before
            for cell in ([letter] + [""] * (width - 1))[:width]:
                if self._column < self._n_columns:
                    self._cells[self._row][self._column] = cell
                    self._column += 1

    def _move_to(self, numbers: list[int]) -> None:
        row, column, *_ = [*numbers, 1, 1] if len(numbers) < 2 else numbers
        self._row = min(max(row, 1), len(self._cells)) - 1
        self._column = min(max(column, 1), self._n_columns) - 1

    def _erase_row(self, _: list[int]) -> None:
        self._cells[self._row][self._column :] = [" "] * (self._n_columns - self._column)

    def _erase(self, _: list[int]) -> None:
        self._cells = [[" "] * self._n_columns for _ in self._cells]

    def _return(self, _: list[int]) -> None:
        self._column = 0

    def _feed_line(self, _: list[int]) -> None:
        self._row = min(self._row + 1, len(self._cells) - 1)


_SEQUENCES: Mapping[str, Callable[[VtScreen, list[int]], None]] = {
    "H": VtScreen._move_to,
    "J": VtScreen._erase,
    "K": VtScreen._erase_row,
    "\r": VtScreen._return,
    "\n": VtScreen._feed_line,
}
