"""A Markdown document in one widget: a hundredth of the cost of a live one, and as good to read, select and copy.

Owns drawing it once for a width.
"""

from __future__ import annotations

from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from tui.widgets.markdown_parser import markdown_parser

__all__ = ["FoldedMarkdown"]

_CODE_THEMES = {True: "monokai", False: "friendly"}  # by whether the app's theme is dark


class FoldedMarkdown(Widget):
    """Markdown as text with styles. Links show their whole address, and no escape sequence carries one."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._drawn: tuple[tuple[int, bool], Content] | None = None

    def render(self) -> Content:
        return self._content(self.content_size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return self._content(width).plain.count("\n") + 1

    def _content(self, width: int) -> Content:
        """The document for a width in cells, drawn anew where that or the theme has changed."""
        key = (width, self.app.current_theme.dark)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, _drawn(self._source, width, is_dark=key[1])
        return self._drawn[1]


def _drawn(source: str, width: int, *, is_dark: bool) -> Content:
    from rich.markdown import Markdown

    console = Console(width=max(width, 1), color_system="truecolor", force_terminal=True, legacy_windows=False)
    document = Markdown(source, hyperlinks=False, code_theme=_CODE_THEMES[is_dark])
    document.parsed = markdown_parser().parse(source)  # what Rich's own parser makes is not fit for a terminal
    lines = console.render_lines(document, console.options.update(width=max(width, 1)), pad=False)
    return Content.from_rich_text(Text("\n").join(map(_text, lines)), console)


def _text(line: list[Segment]) -> Text:
    return Text.assemble(*((segment.text, segment.style or "") for segment in line), no_wrap=True)
