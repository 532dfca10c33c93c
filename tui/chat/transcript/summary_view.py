"""The summary of earlier messages: a divider in the transcript, below which its text can be unfolded."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from app.chat.branches import Ending, TranscriptEntry
from app.common.terminal import printable
from tui.chat.tools.call_view import SIGNS, FoldLine
from tui.markdown.widget import MarkdownText


def summary_line(entry: TranscriptEntry) -> str:
    """Return what the summary does: how many messages it replaces, or that it was not finished."""
    count = f"{entry.n_summarised} earlier message{'s' if entry.n_summarised != 1 else ''}"
    if entry.is_running:
        number, n_parts = entry.part
        part = f", part {number} of {n_parts}" if n_parts > 1 else ""
        return f"Summarising {count}{part}: Esc stops it"
    if entry.ending is not Ending.COMPLETE:
        return "A summary that was not finished: all messages are sent"
    verb = "is" if entry.n_summarised == 1 else "are"
    return f"{count} {verb} summarised; they stay in the chat"


class SummaryView(Vertical):
    """A divider and the text of a summary, which is open while it is written, and then until it is folded."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = entry.is_running
        self._divider = FoldLine(self._line(), markup=False)
        self._text: MarkdownText | None = None
        self._shown = ""  # the text in `_text`

    def compose(self) -> ComposeResult:
        yield self._divider

    async def on_mount(self) -> None:
        """Show the text of one that is open."""
        await self._show_text()

    async def write(self, entry: TranscriptEntry, text: str) -> None:
        """Append `text`; the message is now `entry`."""
        self._entry = entry
        self._divider.update(self._line(), layout=False)
        if self._text is not None and self._shown + text == entry.message.content:
            self._text.append(text)
            self._shown += text
        else:
            await self._show_text()

    async def show(self, entry: TranscriptEntry) -> None:
        """Show the state of the summary."""
        self._entry = entry
        self._divider.update(self._line(), layout=False)
        await self._show_text()

    @on(FoldLine.Clicked)
    async def toggle(self) -> None:
        """Unfold or fold the text."""
        self._is_open = not self._is_open
        self._divider.update(self._line(), layout=False)
        await self._show_text()

    def _line(self) -> str:
        return f"{SIGNS[self._is_open]} {summary_line(self._entry)}"

    async def _show_text(self) -> None:
        text = printable(self._entry.message.content) if self._is_open else ""
        if text == self._shown or not self.is_attached:
            return
        if self._text is not None:
            await self._text.remove()
        self._shown, self._text = text, MarkdownText(text) if text else None
        if self._text is not None:
            await self.mount(self._text)
