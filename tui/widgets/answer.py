"""One answer of the model: waits, streams, ends, and folds into one widget when it is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from tui.conversation import Ending

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


class Answer(Vertical):
    """Markdown that grows. What it is given must be fit for a terminal already."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        yield Static(_WAITING, markup=False, classes="mark")

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
        from rich.markdown import Markdown as RichMarkdown
        from textual.widgets import Markdown

        for document in self.query(Markdown):
            # Links show their whole address, and no escape sequence carries one.
            await self.mount(Static(RichMarkdown(self.text, hyperlinks=False)), before=document)
            await document.remove()

    async def _begin(self) -> MarkdownStream:
        from textual.widgets import Markdown

        document = Markdown(parser_factory=_parser, open_links=False)
        await self.mount(document, before=self._mark)
        self._mark.display = False
        return Markdown.get_stream(document)
