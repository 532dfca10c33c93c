"""The text of one answer below its thoughts: waits, streams, ends."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from app.terminal import printable
from tui.conversation import Ending, Entry
from tui.widgets.markdown_text import MarkdownText
from tui.widgets.thoughts import Thoughts

__all__ = ["Answer"]

_WAITING = "waiting for the answer"
_MARKS = {
    Ending.COMPLETE: "",
    Ending.CUT: "cut at the limit of tokens",
    Ending.STOPPED: "stopped",
    Ending.FAILED: "not complete",
}


class Answer(Vertical):
    """Markdown that grows while its entry is running."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._entry = entry

    def compose(self) -> ComposeResult:
        if self._entry.message.reasoning:
            yield Thoughts(self._entry)
        if text := printable(self._entry.message.content):
            yield MarkdownText(text)
        mark = Static(self._mark_words(), markup=False, classes="mark")
        mark.display = bool(self._mark_words())
        yield mark

    async def write(self, entry: Entry, text: str) -> None:
        """Append `text`, with which the message is as in `entry`."""
        self._entry = entry
        await self._show_thoughts()
        if self.query(MarkdownText):
            self.query_one(MarkdownText).append(text)
        elif text:
            await self.mount(MarkdownText(text), before=self.query_one(".mark"))
            self._show_mark()

    async def show(self, entry: Entry) -> None:
        """Show how the answer stands; its text is what was written."""
        self._entry = entry
        await self._show_thoughts()
        self._show_mark()

    async def _show_thoughts(self) -> None:
        if not self._entry.message.reasoning:
            return
        if not self.query(Thoughts):
            await self.mount(Thoughts(self._entry), before=0)
            self._show_mark()
        self.query_one(Thoughts).show(self._entry)

    def _show_mark(self) -> None:
        mark, words = self.query_one(".mark", Static), self._mark_words()
        mark.update(words)
        mark.display = bool(words)

    def _mark_words(self) -> str:
        if not self._entry.is_running:
            return _MARKS[self._entry.ending]
        return "" if self._entry.message.content or self._entry.message.reasoning else _WAITING
