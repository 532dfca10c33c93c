"""Markdown blocks drawn by Rich, in the colours of the app.

Owns the style of each element. No escape sequence contains an address: a link's address is in the segment's meta, as
`ADDRESS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console
    from rich.markdown import Markdown

__all__ = ["ADDRESS", "MarkdownRenderer"]

ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class MarkdownRenderer:
    """Draws `width` cells wide; `code_theme` is a Pygments style."""

    width: int
    heading: Style
    accent: Style
    muted: Style
    code: Style
    code_theme: str

    def lines(self, block: Sequence[Token]) -> list[list[Segment]]:
        """Return the lines of a block, without empty ones around it."""
        console, document = _console_and_document(self)
        document.parsed = list(block)
        lines = [[*_without_links(line)] for line in console.render_lines(document, pad=False)]
        while lines and _is_empty(lines[-1]):
            lines.pop()
        n_empty = next((n for n, line in enumerate(lines) if not _is_empty(line)), 0)
        return lines[n_empty:]

    @property
    def styles(self) -> Mapping[str, Style]:
        """Rich's style names for Markdown, with our styles."""
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
    from rich.markdown import Markdown
    from rich.theme import Theme

    console = Console(
        width=max(renderer.width, 1),
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(renderer.styles),
    )
    return console, Markdown("", hyperlinks=True, code_theme=renderer.code_theme)


def _without_links(line: Iterable[Segment]) -> Iterator[Segment]:
    for segment in line:
        style = segment.style
        if style is not None and style.link:
            style = style.update_link(None) + Style(meta={ADDRESS: style.link})
        yield Segment(segment.text, style)


def _is_empty(line: Iterable[Segment]) -> bool:
    return not any(segment.text.strip() or (segment.style and segment.style.bgcolor) for segment in line)
