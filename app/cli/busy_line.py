"""A line on stderr that says what is being waited for, written over until something comes."""

from __future__ import annotations

import shutil
import sys

import click
from rich.cells import cell_len, set_cell_size

from app.terminal import printable_line

__all__ = ["BusyLine"]

_ECHO = 2  # cells of what the terminal writes for Ctrl-C, behind the line


class BusyLine:
    """Shown where stderr is a terminal, and as long as one row of it at the most: a longer one could not be taken
    away."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._n_cells = 0

    def put(self, text: str) -> None:
        """Show `text` in place of what was shown."""
        if not self._is_terminal:
            return
        n_most = _row() - _ECHO
        line = printable_line(text)
        line = set_cell_size(line, n_most) if cell_len(line) > n_most else line
        n_cells = cell_len(line)
        click.echo(f"\r{line}{' ' * (min(self._n_cells, n_most) - n_cells)}", nl=False, err=True)
        self._n_cells = n_cells

    def clear(self) -> None:
        """Leave an empty line."""
        if self._n_cells:
            click.echo(f"\r{' ' * min(self._n_cells + _ECHO, _row())}\r", nl=False, err=True)
            self._n_cells = 0


def _row() -> int:
    """Cells of a row that may be written without the terminal going on to the next."""
    return shutil.get_terminal_size().columns - 1
