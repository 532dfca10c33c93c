"""A call of a tool in the transcript: one line, below it what a running call writes, and all of it when expanded."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from app.chat.branches import TranscriptEntry
from app.tools.display import call_lines, plain_lines, progress_text, result_text
from app.tools.tool import ToolResult
from tui.widgets.styled_lines import StyledLines

SIGNS = {False: "▸", True: "▾"}  # by whether it is open
_N_TAIL_LINES = 3
_NO_RESULT = ToolResult(call_id="", tool="")


class FoldLine(Static):
    """The line of something that a click expands or collapses."""

    class Clicked(Message):
        """The user clicked on the line."""

    def on_click(self) -> None:
        self.post_message(self.Clicked())


class ToolCallView(Vertical):
    """A message of role "tool": its line, expanded by a click on it or by `toggle`."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = False
        self._line = FoldLine(self._words(), markup=False)
        self._tail = StyledLines(classes="tail")
        self._details = StyledLines(classes="details")
        self._details.display = False
        self._show_tail()
        self.set_class(entry.is_joined, "-joined")

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._tail
        yield self._details

    def show(self, entry: TranscriptEntry) -> None:
        """Show the present state of the call."""
        self._entry = entry
        self._line.update(self._words(), layout=False)
        self._show_tail()
        self._show_details()
        self.set_class(entry.is_joined, "-joined")

    @on(FoldLine.Clicked)
    def toggle(self) -> None:
        """Expand or collapse arguments and output."""
        self._is_open = not self._is_open
        self._line.update(self._words(), layout=False)
        self._show_details()
        self._details.display = self._is_open

    @property
    def _result(self) -> ToolResult:
        return self._entry.message.result or _NO_RESULT

    def _words(self) -> str:
        words = result_text(self._result, is_running=self._entry.is_running)
        if self._entry.live is not None:
            words = f"{words} · {progress_text(self._entry.live.progress)}"
        return f"{SIGNS[self._is_open]} {words}"

    def _show_tail(self) -> None:
        output = self._entry.live.output if self._entry.live is not None else ""
        lines = plain_lines(output.rstrip("\n"))[-_N_TAIL_LINES:] if output else ()
        self._tail.show(lines)
        self._tail.display = bool(lines)

    def _show_details(self) -> None:
        if self._is_open:
            arguments = self._entry.call.arguments if self._entry.call is not None else ""
            self._details.show(call_lines(arguments, self._entry.message.content, self._result))
