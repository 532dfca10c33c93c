"""Curves in Braille dots, two across and four down in a cell. Not textual-plot: it adds numpy to the app (190 to
390 ms of import on two cores), and distinguishes its points only by colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from textual.content import Content

_BLANK = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row of a cell's dots
_DOTS_ACROSS, _DOTS_DOWN = 2, 4
_AXIS = "$faint"


class BrailleCanvas:
    """`n_columns` × `n_rows` cells of eight dots. Positions are fractions of width and height, from the lower left
    corner."""

    def __init__(self, n_columns: int, n_rows: int) -> None:
        self._n_columns = n_columns
        self._n_rows = n_rows
        self._dots = [[0] * n_columns for _ in range(n_rows)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x0, y0), (x1, y1) = self._dot(*start), self._dot(*end)
        n_steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(n_steps + 1):
            x, y = x0 + round((x1 - x0) * step / n_steps), y0 + round((y1 - y0) * step / n_steps)
            self._dots[y // _DOTS_DOWN][x // _DOTS_ACROSS] |= _BITS[x % _DOTS_ACROSS][y % _DOTS_DOWN]

    def polyline(self, points: Sequence[tuple[float, float]]) -> None:
        for start, end in pairwise(points) if len(points) > 1 else [(each, each) for each in points]:
            self.line(start, end)

    def mark(self, x: float, y: float, sign: str) -> None:
        column, row = self._dot(x, y)
        self._marks[row // _DOTS_DOWN, column // _DOTS_ACROSS] = sign

    def upright(self, x: float, sign: str) -> None:
        """Draw a column of `sign` at `x` in empty cells."""
        column = self._dot(x, 0.0)[0] // _DOTS_ACROSS
        for row in range(self._n_rows):
            if not self._dots[row][column]:
                self._marks.setdefault((row, column), sign)

    def level(self, y: float, sign: str) -> None:
        """Draw a row of `sign` at `y` in empty cells."""
        row = self._dot(0.0, y)[1] // _DOTS_DOWN
        for column in range(self._n_columns):
            if not self._dots[row][column]:
                self._marks.setdefault((row, column), sign)

    def rows(self) -> list[str]:
        return [
            "".join(
                self._marks.get((row, column)) or (chr(_BLANK + bits) if bits else " ")
                for column, bits in enumerate(cells)
            )
            for row, cells in enumerate(self._dots)
        ]

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a position, counted from the upper left corner."""
        across, down = self._n_columns * _DOTS_ACROSS - 1, self._n_rows * _DOTS_DOWN - 1
        return round(min(max(x, 0.0), 1.0) * across), down - round(min(max(y, 0.0), 1.0) * down)


def colored(lines: Sequence[str], colors: Mapping[str, str], curve: str) -> Content:
    """Return lines of a drawing: dots in the colour `curve`, the signs of `colors` in theirs, and axes faint."""

    def color(sign: str) -> str:
        if _BLANK < ord(sign) < _BLANK + 256:
            return curve
        return colors.get(sign, _AXIS if sign in "│─└┊┄" else "$text-muted")

    rows = (
        Content.assemble(*(("".join(signs), style) for style, signs in groupby(line, color))) if line else Content()
        for line in lines
    )
    return Content("\n").join(rows)
