"""A log: plain lines, at the end while the person has not scrolled away."""

from __future__ import annotations

from textual.widgets import Log

from app.terminal import printable

__all__ = ["LogView"]


class LogView(Log):
    """Shows a text that mostly grows: what is new is appended, any other text replaces what was shown."""

    def __init__(self) -> None:
        super().__init__(highlight=False, auto_scroll=True)
        self._text = ""

    def show(self, text: str) -> None:
        """Show all of `text`; it need not be fit for a terminal."""
        if text.startswith(self._text) and self._text.endswith("\n"):
            added = text[len(self._text) :]
        else:
            self.clear()
            added = text
        self._text = text
        if added:
            self.write_lines(printable(added.expandtabs(4)).split("\n")[: -1 if added.endswith("\n") else None])
