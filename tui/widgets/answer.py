"""The text of one answer below its thoughts: waits, streams, ends, and folds into one widget when it is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from app.terminal import printable
from tui.conversation import Ending, Entry
from tui.widgets.folded_markdown import FoldedMarkdown
from tui.widgets.markdown_parser import markdown_parser
from tui.widgets.thoughts import Thoughts

if TYPE_CHECKING:
    from textual.widgets._markdown import MarkdownStream

__all__ = ["Answer"]

_WAITING = "waiting for the answer"
_MARKS = {
    Ending.COMPLETE: "",
    Ending.CUT: "cut at the limit of tokens",
    Ending.STOPPED: "stopped",
    Ending.FAILED: "not complete",
}


class Answer(Vertical):
    """Markdown that grows while its entry is running, else folded."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._entry = entry
        self._text = printable(entry.message.content)
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        if self._entry.message.reasoning:
            yield Thoughts(self._entry)
        if self._text:
            yield FoldedMarkdown(self._text)
        yield Static(markup=False, classes="mark")

    def on_mount(self) -> None:
        self._show_mark()

    async def write(self, entry: Entry, text: str) -> None:
        """Append `text`, with which the message is as in `entry`."""
        self._entry = entry
        await self._show_thoughts()
        if not text:
            return
        if self._stream is None:
            self._stream = await self._begin()
        self._text += text
        await self._stream.write(text)

    async def show(self, entry: Entry) -> None:
        """Show how the answer stands; its text is what was written."""
        if self._entry.is_running and not entry.is_running:
            await self.stop()
        self._entry = entry
        await self._show_thoughts()
        self._show_mark()

    async def stop(self) -> None:
        """Draw what is still to be drawn."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()

    async def fold(self) -> None:
        """Become one widget: a Markdown document costs about twenty, and hundreds of them freeze the app."""
        from textual.widgets import Markdown

        for document in self.query(Markdown):
            await self.mount(FoldedMarkdown(self._text), before=document)
            await document.remove()

    async def _show_thoughts(self) -> None:
        if not self._entry.message.reasoning:
            return
        if not self.query(Thoughts):
            await self.mount(Thoughts(self._entry), before=0)
            self._show_mark()
        self.query_one(Thoughts).show(self._entry)

    def _show_mark(self) -> None:
        mark = self.query_one(".mark", Static)
        waiting = "" if self._text or self._entry.message.reasoning else _WAITING
        text = waiting if self._entry.is_running else _MARKS[self._entry.ending]
        mark.update(text)
        mark.display = bool(text)

    async def _begin(self) -> MarkdownStream:
        from textual.widgets import Markdown

        former = [*self.query(Markdown), *self.query(FoldedMarkdown)]  # of an answer that is written on
        document = Markdown(self._text, parser_factory=markdown_parser, open_links=False)
        await self.mount(document, before=self.query_one(".mark"))
        await self.remove_children(former)
        self.query_one(".mark").display = False
        return Markdown.get_stream(document)
