"""What the person asked."""

from __future__ import annotations

from textual.widgets import Static

from app.chat.message import Attachment
from app.terminal import printable, printable_line

__all__ = ["Question"]


class Question(Static):
    """The text of a question, shown as it was typed, and the names of what went with it."""

    def __init__(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        names = " ".join(f"[{printable_line(attachment.name)}]" for attachment in attachments)
        super().__init__("\n".join(filter(None, (names, printable(text)))), markup=False)
