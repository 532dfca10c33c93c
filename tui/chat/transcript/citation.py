"""The passages that an answer was given: their lines below it, and one of them shown in its document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from app.chat.conversation import Attachment
from app.common.terminal import printable, printable_line
from app.protocol.chat import Source
from quantizer.system.errors import UserError
from tui.design.words import cut


class SourcesView(Widget):
    """A line for each passage of an answer, numbered as the answer cites them; a click opens one."""

    def __init__(self, sources: tuple[Source, ...], clicked: Callable[[Source], Message]) -> None:
        """Create it; `clicked` makes the message about a click on a source."""
        super().__init__()
        self._sources = sources
        self._clicked = clicked

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._sources)

    def render(self) -> Content:
        n_cells = self.content_size.width
        return Content("\n").join(
            Content.assemble(
                (number := f"[{n}] ", "$text-accent"), cut(printable_line(source.label), max(1, n_cells - len(number)))
            )
            for n, source in enumerate(self._sources, start=1)
        )

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._sources) and not self.screen.get_selected_text():
            event.stop()
            self.post_message(self._clicked(self._sources[offset.y]))


class CitationScreen(ModalScreen[None]):
    """A passage with what stands around it in its document: one of the chat's searched `texts`, or what the knowledge
    in `data_dir` has."""

    CSS_PATH = "../chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Close", id="citation-close", tooltip="Go back to the chat"),
        Binding("y", "copy", "Copy the path", id="citation-copy", tooltip="Copy the path of the document"),
    ]

    def __init__(self, data_dir: Path, source: Source, texts: Sequence[Attachment] = ()) -> None:
        super().__init__()
        self._data_dir = data_dir
        self._texts = texts
        self._source = source

    def compose(self) -> ComposeResult:
        with Vertical(id="citation") as panel:
            panel.border_title = Content(printable_line(self._source.label)).markup
            panel.border_subtitle = "Y copies the path · Esc closes"
            yield Static(printable_line(self._source.path), markup=False, id="place")
            yield Static("", markup=False, id="note")
            with VerticalScroll(id="around"):
                yield Static("", markup=False, id="before")
                yield Static(printable(self._source.text), markup=False, id="passage")
                yield Static("", markup=False, id="after")

    async def on_mount(self) -> None:
        from app.knowledge.citation import surroundings, surroundings_in  # with the store, which few chats need

        self.query_one("#around").focus()
        note = self.query_one("#note", Static)
        note.display = False
        try:
            found = surroundings_in(self._texts, self._source)
            if found is None:
                found = await asyncio.to_thread(surroundings, self._data_dir, self._source)
        except UserError as error:
            note.update(printable(str(error)))
            note.display = True
            return
        for place, text in (("before", found.before), ("after", found.after), ("note", found.note)):
            shown = self.query_one(f"#{place}", Static)
            shown.update(printable(text))
            shown.display = bool(text)
        self.call_after_refresh(self.query_one("#passage").scroll_visible, animate=False, top=True)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._source.path)
        self.notify("Copied the path.", markup=False)
