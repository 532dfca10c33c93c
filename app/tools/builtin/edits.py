"""The text of a file and how it is written (UTF-8, UTF-16 with a mark, Windows-1252; line endings), so that writing it
gives the same bytes again; replacing one exact text; a unified diff, bounded in time and size. Pure.
"""

from __future__ import annotations

import codecs
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import dropwhile, islice, takewhile
from typing import TypeAlias

from app.common.terminal import printable
from quantizer.system.errors import UserError

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_OLD = "cp1252"
_TITLES = {"utf-8": "UTF-8", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16", _OLD: "Windows-1252"}
_NO_TEXT = frozenset(range(0x20)) - frozenset(b"\t\n\v\f\r\x1b")  # what a text of an old encoding does not have


class NotTextError(UserError):
    """A file that is no text, or text that a file's encoding cannot have."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a text is written: its encoding, the mark that it begins with, and the ending of most of its lines."""

    encoding: str = "utf-8"
    mark: bytes = b""
    newline: str = "\n"

    @property
    def title(self) -> str:
        """The encoding and line endings in words, "" for UTF-8 with newlines."""
        words = [] if self.encoding == "utf-8" and not self.mark else [_TITLES[self.encoding]]
        return ", ".join([*words, *(["CRLF line endings"] if self.newline == "\r\n" else [])])

    def encode(self, text: str) -> bytes:
        """Return the bytes of `text`, whose line endings stay. Raises NotTextError for what the encoding lacks."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = text[error.start]
            cause = f"{character!a} cannot be written in the encoding of this file, {_TITLES[self.encoding]}."
            raise NotTextError(cause, "Leave the character out.") from None

    def with_endings(self, text: str) -> str:
        lines = text.replace("\r\n", "\n")
        return lines.replace("\n", self.newline) if self.newline != "\n" else lines


NEW_TEXT = TextForm()


def read_text(content: bytes) -> tuple[str, TextForm]:
    """Return the text of a file, with its line endings, and its form. Raises NotTextError for any other file."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decoded(content, encoding, mark)
    if b"\0" in content:
        raise _binary(len(content))
    try:
        return _decoded(content, "utf-8", b"")
    except NotTextError:
        if not _NO_TEXT.isdisjoint(content):
            raise
        return _decoded(content, _OLD, b"")


def _decoded(content: bytes, encoding: str, mark: bytes) -> tuple[str, TextForm]:
    try:
        text = content[len(mark) :].decode(encoding)
    except UnicodeDecodeError:
        raise _binary(len(content)) from None
    n_crlf = text.count("\r\n")
    return text, TextForm(encoding, mark, "\r\n" if n_crlf > text.count("\n") - n_crlf else "\n")


def _binary(n_bytes: int) -> NotTextError:
    return NotTextError(f"The file is not text: it has {n_bytes:,} bytes of another kind.", "Choose a text file.")


MAX_CHARACTERS = 400_000
_MAX_COMPARED = 1_500  # lines between the first and the last difference; more are shown as replaced
_N_CONTEXT = 3
_N_SHOWN = 5
_MAX_HINTED = 200  # lines
_MAX_RATED = 20_000  # lines of a file: a fifth of a second
_MAX_QUOTED = 300  # characters
_LEAST_RATIO = 0.6
_COPY = "Read the file again, and copy the lines exactly."

_Change: TypeAlias = tuple[int, int, int, int]  # lines i to j of the one are lines k to m of the other


class EditError(UserError):
    """An edit that does not fit the file; the model reads why."""


def edited(text: str, old: str, new: str, form: TextForm) -> str:
    """Return `text` with `old` replaced by `new`; everything else stays as it is. Line endings make no difference where
    `old` is looked for; `new` gets those of what it replaces. Raises EditError unless `old` is there exactly once."""
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if not old:
        raise EditError("The text to replace is empty.", "Give the lines to replace, or write the whole file.")
    if old == new:
        raise EditError("The text to replace and the new text are equal.", "Give another text.")
    plain = text.replace("\r\n", "\n")
    found = list(islice(_places(plain, old), _N_SHOWN + 1))
    if not found:
        raise EditError("The text to replace is not in the file.", _hint(plain, old))
    if len(found) > 1:
        lines = ", ".join(str(plain.count("\n", 0, place) + 1) for place in found[:_N_SHOWN])
        more = " and more" if len(found) > _N_SHOWN else ""
        raise EditError(f"The text to replace is there more than once: at lines {lines}{more}.", "Add lines around it.")
    start, end = _original(text, (found[0], found[0] + len(old)))
    replaced = text[start:end]
    newline = form.newline if "\n" not in replaced else "\r\n" if "\r\n" in replaced else "\n"
    return text[:start] + new.replace("\n", newline) + text[end:]


def _places(text: str, old: str) -> Iterator[int]:
    """Yield where `old` begins, where it overlaps itself too."""
    place = text.find(old)
    while place >= 0:
        yield place
        place = text.find(old, place + 1)


def _original(text: str, places: tuple[int, int]) -> tuple[int, int]:
    """Return where `places` of the text with plain newlines are in `text`."""
    ends: list[int] = []
    place = text.find("\r\n")
    while place >= 0:
        ends.append(place - len(ends))
        place = text.find("\r\n", place + 2)
    first, last = (place + bisect_left(ends, place) for place in places)
    return first, last


def _hint(text: str, old: str) -> str:
    """Return what helps to find the text: the line at which it only differs by spaces, else the first wrong one
    after lines that are there, else the line most like its first."""
    sought = old.strip("\n").split("\n")
    wanted = [line.split() for line in sought]
    if len(wanted) > _MAX_HINTED:
        return _COPY
    texts = text.split("\n")
    lines = [line.split() for line in texts]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            wrong = next((place for place, line in enumerate(sought, number) if texts[place] != line), number)
            return f"Line {wrong + 1} differs only by spaces: copy it exactly.{_quoted(texts[wrong])}"
    sought = list(dropwhile(lambda line: not line.strip(), sought))
    if hint := _later_hint(texts, sought):
        return hint
    first = sought[0][:_MAX_QUOTED] if sought else ""
    matcher = SequenceMatcher(None, b=first)  # which keeps what it found out about this one
    best, likeness = 0, _LEAST_RATIO
    for number, line in enumerate(texts[:_MAX_RATED], 1):
        matcher.set_seq1(line[:_MAX_QUOTED])
        if matcher.real_quick_ratio() > likeness and matcher.quick_ratio() > likeness:
            ratio = matcher.ratio()
            if ratio > likeness:
                best, likeness = number, ratio
    if not best:
        return _COPY
    return f"Line {best} is most like it: copy it exactly.{_quoted(texts[best - 1])}"


def _later_hint(texts: Sequence[str], sought: Sequence[str]) -> str:
    """Return what is wrong after the first lines of `sought`, at the place where most of them are; "" where not even
    the first one is there, or all are."""
    starts = (place for place, line in enumerate(texts) if sought and line == sought[0])
    n_equal, place = 0, 0
    for start in islice(starts, _MAX_HINTED):
        pairs = zip(texts[start : start + len(sought)], sought, strict=False)
        n_here = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if n_here > n_equal:
            n_equal, place = n_here, start
    if n_equal in (0, len(sought)):
        return ""
    number = place + n_equal
    if texts[number:] in ([], [""]):
        return f"Its first lines are there, but the file ends after line {number}. {_COPY}"
    return f"Its lines before are there, but line {number + 1} is another: copy it exactly.{_quoted(texts[number])}"


def _quoted(line: str) -> str:
    return f" It is {json.dumps(line, ensure_ascii=False)}" if len(line) <= _MAX_QUOTED else ""


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff without its file names; `text` is "" where nothing differs, and says what was left out of it."""

    text: str
    n_added: int
    n_removed: int

    @property
    def summary(self) -> str:
        return f"+{self.n_added:,} −{self.n_removed:,} lines"


def diff_of(before: str, after: str) -> Diff:
    """Return what makes `after` of `before`. Lines end with newlines; a last one without is marked."""
    old, new = _lines(before), _lines(after)
    changes = _changes(old, new)
    pieces, n_characters, n_left_out = [], 0, 0
    for line in _written(old, new, changes):
        n_characters += len(line) + 1
        if n_characters > MAX_CHARACTERS:
            n_left_out += 1
        else:
            pieces.append(line)
    if n_left_out:
        pieces.append(f"[{n_left_out:,} more lines of this difference are not shown]")
    if n_hidden := _n_hidden(after) - _n_hidden(before):
        pieces.append(f"[{abs(n_hidden):,} control characters {'come' if n_hidden > 0 else 'go'}, which are not shown]")
    n_removed, n_added = (sum(change[at + 1] - change[at] for change in changes) for at in (0, 2))
    return Diff("\n".join(pieces), n_added, n_removed)


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, last + "\n\\ No newline at end of file"] if last else lines


def _n_hidden(text: str) -> int:
    """Return how many characters a terminal must not get, but for line endings."""
    return len(text) - len(printable(text)) - text.count("\r\n")


def _changes(old: Sequence[str], new: Sequence[str]) -> list[_Change]:
    shorter = min(len(old), len(new))
    n_head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    most = shorter - n_head
    n_tail = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    end_old, end_new = len(old) - n_tail, len(new) - n_tail
    if n_head == end_old and n_head == end_new:
        return []
    if max(end_old, end_new) - n_head > _MAX_COMPARED:
        return [(n_head, end_old, n_head, end_new)]
    matcher = SequenceMatcher(None, old[n_head:end_old], new[n_head:end_new])
    return [
        (n_head + i, n_head + j, n_head + k, n_head + m)
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]  # fmt: skip


def _written(old: Sequence[str], new: Sequence[str], changes: Sequence[_Change]) -> Iterator[str]:
    for group in _groups(changes):
        first, last = group[0], group[-1]
        begin = max(0, first[0] - _N_CONTEXT)
        begin_new = first[2] - (first[0] - begin)
        end = min(len(old), last[1] + _N_CONTEXT)
        end_new = last[3] + (end - last[1])
        yield f"@@ -{_range(begin, end)} +{_range(begin_new, end_new)} @@"
        place = begin
        for i, j, k, m in group:
            yield from (f" {line}" for line in old[place:i])
            yield from (f"-{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m])
            place = j
        yield from (f" {line}" for line in old[place:end])


def _groups(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Yield changes that are so near that their context meets."""
    group: list[_Change] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * _N_CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _range(begin: int, end: int) -> str:
    n_lines = end - begin
    return f"{begin + 1 if n_lines else begin}" + ("" if n_lines == 1 else f",{n_lines}")
