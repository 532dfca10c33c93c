"""The text of a file and how it is written: its encoding, a byte order mark, its line endings. Pure.

Owns reading bytes as text so that writing the text gives the same bytes again, and what is no text. Knows UTF-8, UTF-16
with a mark, and Windows-1252 for what is older.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

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
        """Return `text` with the line endings of this form."""
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
    return NotTextError(f"The file is no text: it has {n_bytes:,} bytes of another kind.", "Choose a text file.")
