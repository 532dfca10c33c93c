"""Lines drawn with Braille characters, eight dots a cell, and marks over them. Pure.

Our own and not textual-plot: that fits Textual 8, but brings numpy into an app that has none (190 to 390 ms of import
on two cores), and its points are told apart by colour alone.
"""

from __future__ import annotations

__all__ = ["BrailleCanvas"]

_BLANK = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row of a cell's dots
_DOTS_ACROSS, _DOTS_DOWN = 2, 4


class BrailleCanvas:
    """`n_columns` × `n_rows` cells. Places are shares of width and height from 0 to 1, from the lower left corner."""

    def __init__(self, n_columns: int, n_rows: int) -> None:
        self._n_columns = n_columns
        self._n_rows = n_rows
        self._dots = [[0] * n_columns for _ in range(n_rows)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a straight line."""
        (x0, y0), (x1, y1) = self._dot(*start), self._dot(*end)
        n_steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(n_steps + 1):
            self._set(x0 + round((x1 - x0) * step / n_steps), y0 + round((y1 - y0) * step / n_steps))

    def mark(self, x: float, y: float, sign: str) -> None:
        """Put the character `sign` over what is drawn; a later mark hides an earlier one."""
        column, row = self._dot(x, y)
        self._marks[row // _DOTS_DOWN, column // _DOTS_ACROSS] = sign

    def upright(self, x: float, sign: str) -> None:
        """Put a column of `sign` at `x` wherever nothing is drawn yet."""
        column = self._dot(x, 0.0)[0] // _DOTS_ACROSS
        for row in range(self._n_rows):
            if not self._dots[row][column]:
                self._marks.setdefault((row, column), sign)

    def rows(self) -> list[str]:
        """Return the drawing, the top first."""
        return [
            "".join(self._marks.get((row, column)) or self._cell(row, column) for column in range(self._n_columns))
            for row in range(self._n_rows)
        ]

    def _cell(self, row: int, column: int) -> str:
        bits = self._dots[row][column]
        return chr(_BLANK + bits) if bits else " "

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a place, counted from the upper left corner."""
        across, down = self._n_columns * _DOTS_ACROSS - 1, self._n_rows * _DOTS_DOWN - 1
        return round(min(max(x, 0.0), 1.0) * across), down - round(min(max(y, 0.0), 1.0) * down)

    def _set(self, x: int, y: int) -> None:
        self._dots[y // _DOTS_DOWN][x // _DOTS_ACROSS] |= _BITS[x % _DOTS_ACROSS][y % _DOTS_DOWN]
