"""A Markdown document in one widget, finished or growing, drawn by Rich in the colours of the app.

Textual's own creates a widget per block: an answer of a thousand tokens has a hundred, and each new word lays them out.
This one only draws the lines in view. No escape sequence contains an address: a link's address is in the segment's
meta.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style as TextualStyle
from textual.widget import Widget

from tui.markdown.code import COPY, Code, CodeRows
from tui.markdown.document import Lines, MarkdownDocument, code_blocks

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console
    from rich.markdown import Markdown


ADDRESS = "address"
MAX_PROSE_CELLS = 100
_MAX_STRIPS = 500  # kept by a widget
_MIN_BRIGHTNESS_STEP = 0.35  # of selected text from its ground
_CODE_THEMES = {True: "monokai", False: "friendly"}  # by whether the app's theme is dark


@dataclass(frozen=True, slots=True)
class MarkdownRenderer:
    """Draws code and tables `width` cells wide, prose at most 100; `code_theme` is a Pygments style."""

    width: int
    heading: Style
    accent: Style
    muted: Style
    code: Style
    code_theme: str

    def code_lines(self, code: Code) -> CodeRows:
        return CodeRows(code, self.width, self.code_theme)

    def lines(self, block: Sequence[Token]) -> list[list[Segment]]:
        is_prose = self.width > MAX_PROSE_CELLS and block[0].type != "table_open"
        console, document = _console_and_document(replace(self, width=MAX_PROSE_CELLS) if is_prose else self)
        document.parsed = list(block)
        lines = [[*_without_links(line)] for line in console.render_lines(document, pad=False)]
        while lines and _is_empty(lines[-1]):
            lines.pop()
        n_empty = next((n for n, line in enumerate(lines) if not _is_empty(line)), 0)
        return lines[n_empty:]

    @property
    def styles(self) -> Mapping[str, Style]:
        bold, italic, underline = Style(bold=True), Style(italic=True), Style(underline=True)
        styles = {
            "h1": self.heading + bold,
            "h2": self.heading + underline,
            "h3": self.heading + bold,
            **dict.fromkeys(("h4", "h5", "h6"), self.heading + italic),
            **dict.fromkeys(("item.bullet", "item.number", "table.header", "kbd"), self.accent),
            **dict.fromkeys(("block_quote", "hr", "table.border"), self.muted),
            "link_url": self.accent + underline,
            "list": Style(),
            **dict.fromkeys(("code", "code_block"), self.code),
        }
        return {f"markdown.{name}": style for name, style in styles.items()}


@lru_cache(maxsize=8)
def _console_and_document(renderer: MarkdownRenderer) -> tuple[Console, Markdown]:
    from rich.console import Console
    from rich.theme import Theme

    from tui.markdown.elements import FullMarkdown

    console = Console(
        width=max(renderer.width, 1),
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(renderer.styles),
    )
    return console, FullMarkdown("", hyperlinks=True, code_theme=renderer.code_theme)


def _without_links(line: Iterable[Segment]) -> Iterator[Segment]:
    for segment in line:
        style = segment.style
        if style is not None and style.link:
            style = style.update_link(None) + Style(meta={ADDRESS: style.link})
        yield Segment(segment.text, style)


def _is_empty(line: Iterable[Segment]) -> bool:
    return not any(segment.text.strip() or (segment.style and segment.style.bgcolor) for segment in line)


class MarkdownText(Widget):
    """Markdown as lines. Links show their whole address; a click on one posts it, one on the head of a code block the
    code."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "markdown-text--heading",
        "markdown-text--accent",
        "markdown-text--muted",
        "markdown-text--code",
    }

    @dataclass
    class AddressClicked(Message):
        address: str

    @dataclass
    class CodeClicked(Message):
        """The user wants to copy a code block, which is as the model wrote it."""

        code: str

    def __init__(self, source: str) -> None:
        super().__init__()
        self._document = MarkdownDocument(source)
        self._shown: Lines = ()
        self._style = Style()
        self._appearance: tuple[Hashable, ...] = ()
        self._strips: dict[int, tuple[Sequence[Segment], Strip]] = {}  # by row, for this appearance

    def append(self, text: str) -> None:
        self._document.append(text)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines(width))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the rows of a region. Each is drawn once for as long as it has the same line: Textual forgets all of
        them whenever the text becomes longer."""
        if not self.is_attached:  # removed, but still in Textual's map of the screen: nothing of it may be asked
            return [Strip.blank(crop.width)] * crop.height
        width = self.outer_size.width
        self._shown, self._style = self._lines(self.content_size.width), self.rich_style
        if self.text_selection is not None or crop.column_span != (0, width):
            return super().render_lines(crop)
        appearance = (width, self._style, *self.background_colors, self.opacity, *self.get_line_filters())
        if appearance != self._appearance or len(self._strips) > _MAX_STRIPS:
            self._appearance, self._strips = appearance, {}
        changed = [y for y in crop.line_range if y not in self._strips or self._strips[y][0] is not self._line(y)]
        for first, last in _spans(changed):
            drawn = super().render_lines(Region(0, first, width, last + 1 - first))
            self._strips |= {y: (self._line(y), strip) for y, strip in enumerate(drawn, start=first)}
        return [self._strips[y][1] for y in crop.line_range]

    def render_line(self, y: int) -> Strip:
        segments = self._line(y)
        span = self.text_selection.get_span(y) if self.text_selection else None
        if span is not None:
            segments = self._marked(segments, *span)
        strip = Strip(segments).apply_style(self._style).extend_cell_length(self.content_size.width, self._style)
        return strip.apply_offsets(0, y)

    def _line(self, y: int) -> Sequence[Segment]:
        return self._shown[y] if y < len(self._shown) else ()

    @property
    def rows(self) -> list[str]:
        lines = self._lines(self.content_size.width)
        return ["".join(_selectable(lines[y])).rstrip() for y in range(len(lines))]

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(self.rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        self.refresh()

    def on_click(self, event: Click) -> None:
        if address := event.style.meta.get(ADDRESS):
            self.post_message(self.AddressClicked(address))
        elif COPY in event.style.meta and (offset := event.get_content_offset(self)) is not None:
            lines, blocks = self._lines(self.content_size.width), code_blocks(self._document.source)
            number = sum(_is_code_head(lines[y]) for y in range(offset.y))
            if number < len(blocks):
                event.stop()
                self.post_message(self.CodeClicked(blocks[number].text))

    def _lines(self, width: int) -> Lines:
        heading, accent, muted, code = (
            self.get_component_rich_style(f"markdown-text--{name}", partial=True)
            for name in ("heading", "accent", "muted", "code")
        )
        theme = _CODE_THEMES[self.app.current_theme.dark]
        return self._document.draw(MarkdownRenderer(width, heading, accent, muted, code, theme))

    def _marked(self, segments: Sequence[Segment], start: int, end: int) -> Sequence[Segment]:
        """Return `segments` with the characters from `start` to `end`, or to the last one for -1, in the colours of
        selected text."""
        length = sum(len(segment.text) for segment in segments)
        before, marked, behind = _cut(segments, start, length if end == -1 else end)
        selection = TextualStyle.from_styles(self.screen.get_component_styles("screen--selection"))
        ground = TextualStyle.from_rich_style(self.rich_style)
        return [*before, *(Segment(part.text, _selected(ground, part.style, selection)) for part in marked), *behind]


def _is_code_head(line: Iterable[Segment]) -> bool:
    return any(segment.style is not None and COPY in segment.style.meta for segment in line)


def _selectable(line: Iterable[Segment]) -> Iterator[str]:
    return (segment.text for segment in line if segment.style is None or COPY not in segment.style.meta)


def _spans(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of ascending numbers without a gap."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *others = (number for _, number in run)
        yield first, others[-1] if others else first


def _cut(segments: Sequence[Segment], start: int, end: int) -> tuple[list[Segment], list[Segment], list[Segment]]:
    """Return the parts before, between and behind two positions counted in characters."""
    parts: tuple[list[Segment], list[Segment], list[Segment]] = ([], [], [])
    position = 0
    for segment in segments:
        stops = [min(max(stop - position, 0), len(segment.text)) for stop in (start, end)]
        for part, (first, last) in zip(parts, pairwise((0, *stops, len(segment.text))), strict=True):
            if first < last:
                part.append(Segment(segment.text[first:last], segment.style))
        position += len(segment.text)
    return parts


@lru_cache(maxsize=256)
def _selected(ground: TextualStyle, style: Style | None, selection: TextualStyle) -> Style:
    """Return `style` on `ground` as selected text: in black or white where its own colour would hardly be seen."""
    shown = ground + TextualStyle.from_rich_style(style or Style()) + selection
    background, foreground = shown.background, shown.foreground
    if background is None or foreground is None or background.ansi is not None or foreground.ansi is not None:
        return shown.rich_style  # the terminal's own colours
    if abs(background.brightness - foreground.brightness) < _MIN_BRIGHTNESS_STEP:
        shown += TextualStyle(foreground=background.get_contrast_text(1.0))
    return shown.rich_style
