"""One answer of the model: waits, streams, ends, and folds into one widget when it is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from tui.conversation import Ending, Exchange

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from textual.widgets._markdown import MarkdownStream

__all__ = ["Answer"]

_WAITING = "waiting for the answer"
_MARKS = {
    Ending.COMPLETE: "",
    Ending.CUT: "cut at the limit of tokens",
    Ending.STOPPED: "stopped",
    Ending.FAILED: "not complete",
}


def _parser() -> MarkdownIt:
    """Return a Markdown parser that shows HTML as text, so that nothing a model writes disappears."""
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False})


def _folded(text: str) -> Static:
    """Return Markdown in one widget. Links show their whole address, and no escape sequence carries one."""
    from rich.markdown import Markdown as RichMarkdown

    return Static(RichMarkdown(text, hyperlinks=False))


class Answer(Vertical):
    """Markdown that grows, or `said` another time and folded. What it is given must be fit for a terminal already."""

    def __init__(self, said: Exchange | None = None) -> None:
        super().__init__()
        self.text = said.answer if said else ""
        self._said = said
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        if self._said is None:
            yield Static(_WAITING, markup=False, classes="mark")
            return
        yield _folded(self.text)
        mark = Static(_MARKS[self._said.ending], markup=False, classes="mark")
        mark.display = bool(_MARKS[self._said.ending])
        yield mark

    @property
    def _mark(self) -> Static:
        return self.query_one(".mark", Static)

    async def write(self, text: str) -> None:
        """Append `text`."""
        if self._stream is None:
            self._stream = await self._begin()
        self.text += text
        await self._stream.write(text)

    async def finish(self, ending: Ending) -> None:
        """Draw what is still to be drawn and say how it ended."""
        if self._stream is not None:
            await self._stream.stop()
        self._mark.update(_MARKS[ending])
        self._mark.display = bool(_MARKS[ending])

    async def fold(self) -> None:
        """Become one widget: a Markdown document costs about twenty, and hundreds of them freeze the app."""
        from textual.widgets import Markdown

        for document in self.query(Markdown):
            await self.mount(_folded(self.text), before=document)
            await document.remove()

    async def _begin(self) -> MarkdownStream:
        from textual.widgets import Markdown

        document = Markdown(parser_factory=_parser, open_links=False)
        await self.mount(document, before=self._mark)
        self._mark.display = False
        return Markdown.get_stream(document)
