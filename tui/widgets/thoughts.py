"""What a model thought before it answered: one line, and all of it below when opened."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from app.terminal import printable
from tui.conversation import Entry
from tui.thought import thought_words

__all__ = ["Thoughts"]

_SIGNS = {False: "▸", True: "▾"}  # by whether it is open


class ThoughtLine(Static):
    """How long and how much was thought."""

    class Clicked(Message):
        """Somebody wants to see more, or less."""

    def on_click(self) -> None:
        self.post_message(self.Clicked())


class Thoughts(Vertical):
    """Opened and folded by a click on its line, or by `toggle`."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = False

    def compose(self) -> ComposeResult:
        yield ThoughtLine(self._line(), markup=False)
        text = Static(markup=False, classes="text")
        text.display = False
        yield text

    def show(self, entry: Entry) -> None:
        """Show how far the thoughts of `entry` have come."""
        former, self._entry = self._entry.message.reasoning, entry
        self._show_line()
        if self._is_open and entry.message.reasoning != former:
            self._show_text()

    def toggle(self) -> None:
        """Open what is folded, fold what is open."""
        self._is_open = not self._is_open
        self._show_all()

    def on_thought_line_clicked(self) -> None:
        self.toggle()

    def _show_all(self) -> None:
        self._show_line()
        self._show_text()
        self.query_one(".text").display = self._is_open

    def _show_line(self) -> None:
        self.query_one(ThoughtLine).update(self._line(), layout=False)

    def _line(self) -> str:
        words = thought_words(self._entry.message, is_running=self._entry.is_running)
        return f"{_SIGNS[self._is_open]} {words}"

    def _show_text(self) -> None:
        text = printable(self._entry.message.reasoning) if self._is_open else ""
        self.query_one(".text", Static).update(text)
