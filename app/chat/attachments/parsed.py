"""What a parser makes of a file, the limits on it, and the refusal of a file. Values only."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHARACTERS = 4 << 20  # of a document: a million tokens, more than any context
MAX_PICTURES = 20  # pages of a document as pictures


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What a file says: its text, how much it is ("12 pages"), and its pages as PNG."""

    text: str = ""
    detail: str = ""
    pictures: tuple[bytes, ...] = ()


class RefusedFileError(Exception):
    """A file that cannot be read; `cause` continues a sentence that begins with its name."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
