"""What a parser is asked (the pages of a document, as in paper.pdf#3-5) and what it answers, with the limits on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quantizer.system.errors import UsageError

MAX_CHARACTERS = 4 << 20  # of a document: a million tokens, more than any context
MAX_PICTURES = 20  # pages of a document as pictures


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What a file says: its text, how much it is ("12 pages"), and its pages as PNG."""

    text: str = ""
    detail: str = ""
    pictures: tuple[bytes, ...] = ()


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a block of code, with more backticks than it has in a row: it cannot close its own fence."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


class RefusedFileError(Exception):
    """A file that cannot be read; `cause` continues a sentence that begins with its name."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


_PAGES = re.compile(r"([0-9]{1,6})(-([0-9]{1,6})?)?")
_PICTURES = "pictures"
_REMEDY = f"Write the pages as #3, #3-5 or #3-, and #{_PICTURES} or #3-5,{_PICTURES} for pages as pictures."


@dataclass(frozen=True, slots=True)
class PageChoice:
    """The pages from `first` to `last`, from 1 on and inclusive; None is the last one. With `as_pictures` a model gets
    the pages as pictures, otherwise their text."""

    first: int = 1
    last: int | None = None
    as_pictures: bool = False

    def __str__(self) -> str:
        """Return the choice as it is written after a name; empty for all pages as text."""
        pages = "" if (self.first, self.last) == (1, None) else f"{self.first}-{self.last or ''}"
        parts = ",".join(filter(None, (pages, _PICTURES if self.as_pictures else "")))
        return f"#{parts}" if parts else ""


ALL_PAGES = PageChoice()


def split_page_choice(name: str) -> tuple[str, PageChoice]:
    """Return the name of a file and the pages chosen after its last number sign. A name without a choice,
    `notes#draft.md` too, is returned as it is. Raises UsageError for pages that run backwards."""
    file_name, sign, chosen = name.rpartition("#")
    parts = chosen.split(",") if sign and file_name else []
    as_pictures = _PICTURES in parts
    pages = [part for part in parts if part != _PICTURES]
    found = _PAGES.fullmatch(pages[0]) if len(pages) == 1 else None
    if not parts or len(parts) > 2 or (pages and found is None):
        return name, ALL_PAGES
    if found is None:
        return file_name, PageChoice(as_pictures=as_pictures)
    first = int(found[1])
    last = first if found[2] is None else int(found[3]) if found[3] else None
    if first < 1 or (last is not None and last < first):
        raise UsageError(f"{name} names no pages.", _REMEDY)
    return file_name, PageChoice(first, last, as_pictures)
