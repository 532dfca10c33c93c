"""The text of a file → passages to find and to quote, cut where headings and paragraphs begin. Pure.

A passage is a slice of the text, so that its offsets lead back to it. It is bounded in bytes of UTF-8, not characters:
scripts whose characters are tokens have long characters, and small embedding models read 512 tokens at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from app.chat.conversation import Attachment

MAX_PASSAGE_BYTES = 1_000  # about 250 tokens of English
_MIN_PASSAGE_BYTES = 250  # a shorter section goes on with the next one: a heading alone answers nothing
_OVERLAP_CHARACTERS = 120  # of the pieces of a paragraph that is cut
_MAX_HEADING_CHARACTERS = 200
_MAX_SECTION_CHARACTERS = 100  # of one heading in a chain of them

_BLOCK = re.compile(r"(?:^[^\S\n]*\S[^\n]*(?:\n|\Z))+", re.MULTILINE)  # lines without a blank one
_PAGE = re.compile(r"\[Page ([0-9]{1,6})\]")
_MARKDOWN_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")  # pages have one beside each heading, which leads to it
_RULE = re.compile(r"([=\-~^\"*+#'`_.:])\1{2,}[ \t]*")
_MAX_LINE_CHARACTERS = 300  # of one that is a heading
# Where a long paragraph may be cut, the best place first: after a sentence, a line, a blank.
_BORDERS = (re.compile(r"(?<=[.!?:;])\s+"), re.compile(r"\n"), re.compile(r"[ \t]+"))
_LEAST_SHARE = 0.5  # of a piece: a better place to cut is not taken where the piece would be shorter
_PDF, _MARKDOWN_ENDINGS = "application/pdf", (".md", ".markdown", ".mdx", ".mkd")
_PLAIN = "text/plain"


@dataclass(frozen=True, slots=True)
class Passage:
    """The characters from `begin` to `end` of a file's text. `heading` has the headings above it, outermost first,
    joined by " > ". `page` is the page of a PDF that it begins on, None for what has no pages."""

    text: str
    begin: int
    end: int
    heading: str = ""
    page: int | None = None


class _Sections:
    """The headings above the place that was reached in a text."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []
        self._levels: dict[str, int] = {}  # of underlines, in the order of their first use

    @property
    def chain(self) -> str:
        """They in one line, the innermost that fit."""
        titles: list[str] = []
        for _, title in reversed(self._open):
            if sum(map(len, titles)) + 3 * len(titles) + len(title) > _MAX_HEADING_CHARACTERS:
                break
            titles.insert(0, title)
        return " > ".join(titles)

    def enter(self, block: str, *, is_markdown: bool) -> bool:
        """Take the heading that `block` begins with, if it does: `# Title` of Markdown, or a title with a line under
        it, and perhaps one over it, as reStructuredText and plain texts have them."""
        first, second, third = [*block[: 3 * _MAX_LINE_CHARACTERS].split("\n", 3)[:3], "", ""][:3]
        if is_markdown and len(first) <= _MAX_LINE_CHARACTERS and (found := _MARKDOWN_HEADING.fullmatch(first)):
            level, title = len(found[1]), found[2].rstrip("# \t") or found[2]
        else:
            mark = first[:1] if _RULE.fullmatch(first) and third[:1] == first[:1] else ""
            title, rule = (second, third) if mark else (first, second)
            is_rule = _RULE.fullmatch(rule) and not _RULE.fullmatch(title)
            if not is_rule or not title.strip() or not len(title) // 2 <= len(rule) <= _MAX_LINE_CHARACTERS:
                return False
            level = self._levels.setdefault(mark + rule[0], len(self._levels) + 1)
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        plain = _LINK.sub(r"\1", title).rstrip("# \t¶")
        self._open.append((level, " ".join((plain or title).split())[:_MAX_SECTION_CHARACTERS]))
        return True


def passages_of(attachment: Attachment) -> Iterator[Passage]:
    """Yield the passages of a document's text; readers of documents write Markdown."""
    is_markdown = attachment.media_type != _PLAIN or PurePath(attachment.name).suffix.lower() in _MARKDOWN_ENDINGS
    return split_passages(attachment.content, has_pages=attachment.media_type == _PDF, is_markdown=is_markdown)


def split_passages(text: str, *, has_pages: bool = False, is_markdown: bool = False) -> Iterator[Passage]:
    """Yield the passages of `text` in order, each of at most `MAX_PASSAGE_BYTES`. With `has_pages` paragraphs
    `[Page 3]` begin the pages of a PDF, and with `is_markdown` lines `# Title` are headings; in other texts they are
    text."""
    sections = _Sections()
    begin = end = n_bytes = 0  # of the passage that is being gathered
    heading, page = "", None

    def gathered() -> Iterator[Passage]:
        if n_bytes:
            yield Passage(text[begin:end], begin, end, heading, page)

    for match in _BLOCK.finditer(text):
        block = match[0].rstrip()
        if has_pages and (mark := _PAGE.fullmatch(block)):
            yield from gathered()
            n_bytes, page = 0, int(mark[1])
            continue
        n_block = len(block.encode("utf-8", "replace"))
        is_heading = sections.enter(block, is_markdown=is_markdown)
        n_gap = match.start() - end if n_bytes else 0
        is_full = n_bytes + n_gap + n_block > MAX_PASSAGE_BYTES
        if n_bytes and (is_full or (is_heading and n_bytes >= _MIN_PASSAGE_BYTES)):
            yield from gathered()
            n_bytes = n_gap = 0
        if not n_bytes:
            begin, heading = match.start(), sections.chain
        end, n_bytes = match.start() + len(block), n_bytes + n_gap + n_block
        if n_bytes > MAX_PASSAGE_BYTES:  # then it is this block alone
            *pieces, (begin, end) = _pieces(text, begin, end)
            yield from (Passage(text[at:to], at, to, heading, page) for at, to in pieces)
            n_bytes = len(text[begin:end].encode("utf-8", "replace"))
    yield from gathered()


def _pieces(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a long paragraph begin and end; each begins in the end of the one before."""
    while True:
        limit = begin + _fitting(text[begin : min(end, begin + MAX_PASSAGE_BYTES)])
        if limit >= end:
            yield begin, end
            return
        least = begin + max(1, int((limit - begin) * _LEAST_SHARE))
        cut = limit
        for border in _BORDERS:
            if places := list(border.finditer(text, least, limit)):
                cut = places[-1].start() or limit
                break
        yield begin, cut
        # A word is not cut at the beginning either. The next piece begins in this one's later half: it goes on.
        overlap_begin = max(cut - _OVERLAP_CHARACTERS, begin + (cut - begin) // 2 + 1)
        blank = re.compile(r"\s+").search(text, overlap_begin, cut)
        begin = blank.end() if blank else cut
        while begin < end and text[begin].isspace():
            begin += 1


def _fitting(text: str) -> int:
    """Return how many characters of `text` have at most `MAX_PASSAGE_BYTES`."""
    data = text.encode("utf-8", "replace")
    return len(data[:MAX_PASSAGE_BYTES].decode("utf-8", "ignore")) if len(data) > MAX_PASSAGE_BYTES else len(text)
