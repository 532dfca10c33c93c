"""A Markdown document in one widget, finished or growing.

Textual's own creates a widget per block: an answer of a thousand tokens has a hundred, and each new word lays them out.
This one only draws the lines in view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.markdown.document import MarkdownDocument
from tui.markdown.renderer import ADDRESS, MarkdownRenderer

__all__ = ["MarkdownText"]

_CODE_THEMES = {True: "monokai", False: "friendly"}  # by whether the app's theme is dark


class MarkdownText(Widget):
    """Markdown as lines. Links show their whole address; a click on one posts it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "markdown-text--heading",
        "markdown-text--accent",
        "markdown-text--muted",
        "markdown-text--code",
    }

    @dataclass
    class AddressClicked(Message):
        """The user clicked on a link."""

        address: str

    def __init__(self, source: str) -> None:
        super().__init__()
        self._document = MarkdownDocument(source)

    def append(self, text: str) -> None:
        """Append `text`."""
        self._document.append(text)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        lines = self._lines(width)
        segments = lines[y] if y < len(lines) else ()
        span = self.text_selection.get_span(y) if self.text_selection else None
        if span is not None:
            segments = self._marked(segments, *span)
        strip = Strip(segments).apply_style(self.rich_style).extend_cell_length(width, self.rich_style)
        return strip.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text without padding."""
        lines = self._lines(self.content_size.width)
        texts = ("".join(segment.text for segment in line).rstrip() for line in lines)
        return selection.extract("\n".join(texts)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        self.refresh()

    def on_click(self, event: Click) -> None:
        """Post the address of the clicked link."""
        if address := event.style.meta.get(ADDRESS):
            self.post_message(self.AddressClicked(address))

    def _lines(self, width: int) -> Sequence[Sequence[Segment]]:
        heading, accent, muted, code = (
            self.get_component_rich_style(f"markdown-text--{name}", partial=True)
            for name in ("heading", "accent", "muted", "code")
        )
        theme = _CODE_THEMES[self.app.current_theme.dark]
        return self._document.draw(MarkdownRenderer(width, heading, accent, muted, code, theme))

    def _marked(self, segments: Sequence[Segment], start: int, end: int) -> Sequence[Segment]:
        text = Text.assemble(*((segment.text, segment.style or "") for segment in segments), end="")
        style = self.screen.get_component_rich_style("screen--selection")
        text.stylize(style, start, len(text) if end == -1 else end)
        return [*text.render(self.app.console)]
