"""HTML → Markdown, by Beautiful Soup and markdownify. Nothing is fetched; scripts, styles and pictures are left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from app.chat.attachments.parsing import PageChoice, ParsedFile, RefusedFileError

_HIDDEN = [
    "title",
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "iframe",
    "object",
    "head",
    "canvas",
    "audio",
    "video",
]
_BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")


def prepare() -> None:
    """Load the libraries."""
    import bs4  # noqa: F401
    import markdownify  # noqa: F401


def parse(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the text of a page, in the encoding that it declares. Raises RefusedFileError for one without any."""
    text = markdown_of(data)
    if not text:
        raise RefusedFileError("has no text.", "Save the page with its content, or as PDF.")
    return ParsedFile(text, f"{len(text):,} characters")


def markdown_of(page: bytes | str) -> str:
    """Return a page as Markdown, its title first."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for element in soup.find_all(_HIDDEN):
        element.decompose()
    for picture in soup.find_all("img"):
        picture.replace_with(str(picture.get("alt") or ""))
    body = _BLANK_LINES.sub("\n\n", _converted(soup)).strip()
    return f"# {title}\n\n{body}" if title and not body.startswith(f"# {title}") else body


def _converted(soup: Any) -> str:
    from markdownify import MarkdownConverter

    converter = MarkdownConverter(heading_style="ATX", bullets="-", escape_asterisks=False, escape_underscores=False)
    return str(converter.convert_soup(soup))
