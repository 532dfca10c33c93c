"""A log: plain lines, wrapped, at the end while the person has not scrolled away."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from textual.events import Resize
from textual.widgets import Log

from app.terminal import printable

__all__ = ["LogView"]


class LogView(Log):
    """Shows a text that mostly grows: what is new is appended, any other text replaces what was shown."""

    def __init__(self) -> None:
        super().__init__(highlight=False, auto_scroll=False)  # the anchor does it, when all is laid out
        self._text = ""
        self._wrap_cells = 0  # the width to which the lines are wrapped

    def on_mount(self) -> None:
        self.anchor()

    def show(self, text: str) -> None:
        """Show all of `text`; it need not be fit for a terminal."""
        if text.startswith(self._text) and self._text.endswith("\n"):
            added = text[len(self._text) :]
        else:
            self.clear()
            self.anchor()
            added = text
        self._text = text
        self._append(added)

    def on_resize(self, _: Resize) -> None:
        """Wrap the lines to the width that there is now, and show their end."""
        if self.scrollable_content_region.width != self._wrap_cells:
            self._wrap_cells = self.scrollable_content_region.width
            self.clear()
            self._append(self._text)
            self.anchor()

    def _append(self, text: str) -> None:
        if text and self._wrap_cells:  # before it is laid out there is nothing to wrap to
            lines = printable(text.expandtabs(4)).split("\n")[: -1 if text.endswith("\n") else None]
            self.write_lines([part for line in lines for part in _wrapped(line, self._wrap_cells)])


def _wrapped(line: str, n_cells: int) -> Iterator[str]:
    if cell_len(line) <= n_cells:
        yield line
    else:
        yield from chop_cells(line, n_cells)
