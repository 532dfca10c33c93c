"""The prompt on the command line: an argument, piped text or a piped file, or lines typed at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from quantizer.system.errors import UsageError
from quantizer.system.files import read_at_most

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
