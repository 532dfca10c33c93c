"""Texts that go with a question: pasted, or from a file.

Pure. Owns from when on a paste is better attached, and how the model is told of an attachment.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.chat.message import Attachment

__all__ = ["is_long", "pasted", "told"]

_LONG_CHARACTERS = 1000
_LONG_LINES = 12
_FENCE = "```"


def is_long(text: str) -> bool:
    """Whether a pasted text would fill the prompt."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment whose name none of the `others` has."""
    names = {attachment.name for attachment in others}
    number = next(number for number in range(1, len(names) + 2) if f"pasted {number}" not in names)
    return Attachment(f"pasted {number}", text)


def told(question: str, attachments: Sequence[Attachment]) -> str:
    """Return a question as the model reads it: behind the texts, each fenced and named. What comes last is heeded."""
    return "\n\n".join([*map(_fenced, attachments), question])


def _fenced(attachment: Attachment) -> str:
    """Fence a text with more backticks than it has in a row anywhere, so that it cannot end its own fence."""
    fence = _FENCE
    while fence in attachment.content:
        fence += "`"
    return f"{attachment.name}:\n{fence}\n{attachment.content.rstrip()}\n{fence}"
