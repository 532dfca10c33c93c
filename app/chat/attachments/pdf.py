"""PDFs → text with page numbers, or pages as pictures, by pypdfium2 (PDFium without its JavaScript engine).

A text begins each page with a line such as [Page 3]. Pages without any text, scans, become pictures.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from app.chat.attachments.parsing import (
    ALL_PAGES,
    MAX_CHARACTERS,
    MAX_PICTURES,
    PageChoice,
    ParsedFile,
    RefusedFileError,
)

MAX_PAGES = 5_000
MAX_SIDE = 1_568  # pixels of a page's longer side; models scale to less
_SCALE = 2.0  # 144 dots per inch
_MAX_RATIO = 50
_PASSWORD = "password"  # noqa: S105  (in PDFium's error)
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def parse_pdf(data: bytes, pages: PageChoice, progress: Callable[[], None]) -> ParsedFile:
    """Return the text of the chosen pages, or with `pages.as_pictures`, and where no page has text, pictures of them.
    Raises RefusedFileError for a protected document, one without those pages, and too many of them."""
    with closing(_opened(data)) as document:
        n_pages = len(document)
        numbers = _numbers(pages, n_pages)
        detail = _detail(pages, numbers, n_pages)
        if not pages.as_pictures:
            text = _text(document, numbers, progress)
            if text:
                return ParsedFile(text, detail)
        return ParsedFile("", detail, tuple(_pictures(document, numbers, progress, is_chosen=pages.as_pictures)))


def _opened(data: bytes) -> Any:
    import pypdfium2

    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if _PASSWORD in str(error).lower():
            cause = "is protected by a password."
            raise RefusedFileError(cause, "Save it without one, and attach that.") from error
        raise


def _numbers(pages: PageChoice, n_pages: int) -> range:
    """Return the numbers of the chosen pages, from 1 on."""
    if n_pages < 1:
        raise RefusedFileError("has no pages.", "Attach another file.")
    last = n_pages if pages.last is None else pages.last
    if last > n_pages or pages.first > n_pages:
        cause = f"has {n_pages:,} {_noun(n_pages)}, not {max(last, pages.first):,}."
        raise RefusedFileError(cause, "Choose from these.")
    if last - pages.first >= MAX_PAGES:
        raise RefusedFileError(f"has {n_pages:,} pages.", f"Attach at most {MAX_PAGES:,} of them, such as #1-50.")
    return range(pages.first, last + 1)


def _detail(pages: PageChoice, numbers: range, n_pages: int) -> str:
    if (pages.first, pages.last) == (ALL_PAGES.first, ALL_PAGES.last):
        return f"{n_pages:,} {_noun(n_pages)}"
    first, last = numbers[0], numbers[-1]
    return f"page {first} of {n_pages:,}" if first == last else f"pages {first}–{last} of {n_pages:,}"


def _noun(n_pages: int) -> str:
    return "page" if n_pages == 1 else "pages"


def _text(document: Any, numbers: range, progress: Callable[[], None]) -> str:
    """Return the text of the pages, each after its mark; empty where none has any."""
    parts: list[str] = []
    n_characters, has_text = 0, False
    for number in numbers:
        with closing(document[number - 1]) as page, closing(page.get_textpage()) as text_page:
            words = str(text_page.get_text_bounded())
        words = _CONTROLS.sub("", words.replace("\r\n", "\n").replace("\r", "\n")).strip()
        has_text = has_text or bool(words)
        parts.append(f"[Page {number}]\n\n{words}".rstrip())
        n_characters += len(parts[-1])
        if n_characters > MAX_CHARACTERS:
            cause = f"has more than {MAX_CHARACTERS:,} characters up to page {number:,}."
            raise RefusedFileError(cause, "Attach fewer pages, such as #1-50.")
        progress()
    return "\n\n".join(parts) if has_text else ""


def _pictures(document: Any, numbers: range, progress: Callable[[], None], *, is_chosen: bool) -> Iterator[bytes]:
    """Yield the pages as PNG."""
    if len(numbers) > MAX_PICTURES:
        cause = f"would be {len(numbers):,} pictures" + ("." if is_chosen else ", for its pages have no text.")
        example = f"#{numbers[0]}-{numbers[0] + MAX_PICTURES - 1},pictures"
        raise RefusedFileError(cause, f"Attach at most {MAX_PICTURES} pages, such as {example}.")
    for number in numbers:
        written = io.BytesIO()
        with closing(document[number - 1]) as page:
            width, height = page.get_size()
            if not 0 < max(width, height) <= _MAX_RATIO * min(width, height):
                raise RefusedFileError(f"has a page {number} of no usable size.", "Attach other pages.")
            scale = min(_SCALE, MAX_SIDE / max(width, height))
            with closing(page.render(scale=scale)) as bitmap:
                bitmap.to_pil().convert("RGB").save(written, "PNG")
        yield written.getvalue()
        progress()
