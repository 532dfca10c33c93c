"""Lines of a diff, arguments or an output (`app.tools.display`), folded to the width and drawn only where they are
seen.

Owns folding and colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from app.tools.display import StyledLine


class StyledLines(Widget):
    """Draws lines as they are seen; a line that is wider than the widget goes on in the next row."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"styled-lines--{kind}" for kind in ("added", "removed", "place", "heading")
    }
    DEFAULT_CSS = """
    StyledLines { height: auto; width: 1fr; }
    StyledLines > .styled-lines--added { color: $text-success; }
    StyledLines > .styled-lines--removed { color: $text-error; }
    StyledLines > .styled-lines--place { color: $text-accent; }
    StyledLines > .styled-lines--heading { text-style: bold; }
    """

    def __init__(self, lines: Sequence[StyledLine] = (), *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._lines = tuple(lines)
        self._rows: tuple[StyledLine, ...] = ()
        self._folded_at = -1

    def show(self, lines: Sequence[StyledLine]) -> None:
        if (shown := tuple(lines)) != self._lines:
            self._lines, self._folded_at = shown, -1
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._folded(width))

    def render_line(self, y: int) -> Strip:
        rows, width = self._folded(self.content_size.width), self.content_size.width
        row = rows[y] if y < len(rows) else StyledLine("")
        style = self.rich_style
        if row.kind != "plain":
            style += self.get_component_rich_style(f"styled-lines--{row.kind}", partial=True)
        span = self.text_selection.get_span(y) if self.text_selection else None
        segments = [Segment(row.text, style)] if span is None else self._marked(row.text, style, *span)
        return Strip(segments).extend_cell_length(width, self.rich_style).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = self._folded(self.content_size.width)
        return selection.extract("\n".join(row.text for row in rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        self.refresh()

    def _marked(self, text: str, style: Style, start: int, end: int) -> list[Segment]:
        """Return the segments of a row of which the characters from `start` to `end` (-1: the last) are selected."""
        stop = len(text) if end == -1 else end
        selected = style + self.screen.get_component_rich_style("screen--selection", partial=True)
        return [Segment(text[:start], style), Segment(text[start:stop], selected), Segment(text[stop:], style)]

    def _folded(self, width: int) -> tuple[StyledLine, ...]:
        if width != self._folded_at:
            rows: list[StyledLine] = []
            for line in self._lines:
                fits = len(line.text) * 2 <= width  # no character is wider than two cells
                parts = () if fits else chop_cells(line.text, max(width, 2)) or ("",)
                rows += [line] if fits else [StyledLine(part, line.kind) for part in parts]
            self._rows, self._folded_at = tuple(rows), width
        return self._rows
