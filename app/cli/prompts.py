"""The question on the command line: an argument, piped text, lines typed at a terminal, and attached files.

Files go with the one request; nothing is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Attachment
from quantizer.system.errors import UsageError
from quantizer.system.files import read_at_most

if TYPE_CHECKING:
    from app.chat.attachments.parsing import PageChoice


_FENCE = '"""'


def piped_text() -> str:
    """Return all of stdin when it is not a terminal. Raises UsageError when it is not UTF-8."""
    return _text(_piped())


def piped_input() -> str | bytes:
    """Return all of stdin when it is not a terminal: a text, or the bytes of a picture, a sound or a PDF.

    Raises UsageError for anything else.
    """
    from app.chat.attachments.kinds import MAX_FILE_BYTES, Form, kind_of

    data = _piped(MAX_FILE_BYTES + 1)
    return _text(data) if kind_of(data, "The piped file").form is Form.TEXT else data


def _piped(max_bytes: int | None = None) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    return sys.stdin.buffer.read() if max_bytes is None else read_at_most(sys.stdin.buffer, max_bytes)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cause = f"The piped text is not UTF-8: {error.reason} at byte {error.start}."
        raise UsageError(cause, "Convert it.") from error


def combined(prompt: str | None, piped: str) -> str:
    """Return the prompt followed by the piped text; empty without both.

    Raises UsageError for an argument that was not text in the terminal's encoding.
    """
    question = "\n\n".join(part for part in (prompt or "", piped.strip("\r\n")) if part.strip())
    if any("\ud800" <= character <= "\udfff" for character in question):
        raise UsageError("The prompt is not text in this terminal's encoding.", "Pipe it in as UTF-8.")
    return question


def multiline(first: str, read_line: Callable[[], str]) -> str:
    """Return the message that begins with the line `first`; after an opening \"\"\" it extends to the closing one."""
    if not first.startswith(_FENCE):
        return first
    lines = [first.removeprefix(_FENCE)]
    while not lines[-1].rstrip().endswith(_FENCE):
        lines.append(read_line())
    lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
    return "\n".join(lines).strip("\n")


@dataclass(frozen=True, slots=True)
class AttachedFiles:
    """Attachments, and the contents of their pictures and sounds by SHA-256."""

    attachments: tuple[Attachment, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)


def read_attached(names: Sequence[str], piped: bytes = b"") -> AttachedFiles:
    """Read the files `names`, which may choose pages (paper.pdf#3-5), and a piped one.

    Raises StorageError and UsageError for what cannot be attached.
    """
    if not names and not piped:
        return AttachedFiles()
    from app.chat.attachments.reader import read_data, read_file

    read = [read_file(path, name, pages) for path, name, pages in map(_chosen, names)]
    read += [read_data(piped, "piped file")] if piped else []
    contents = {sha256: content for each in read for sha256, content in each.contents.items()}
    return AttachedFiles(tuple(each.attachment for each in read), contents)


def _chosen(name: str) -> tuple[Path, str, PageChoice]:
    """Return the path of a file, its name and the pages chosen of it; a file may have a number sign in its name."""
    from app.chat.attachments.parsing import ALL_PAGES, split_page_choice

    if Path(name).exists():
        return Path(name), Path(name).name, ALL_PAGES
    file_name, pages = split_page_choice(name)
    return Path(file_name), Path(file_name).name, pages
