"""What the person asked."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable

__all__ = ["Question"]


class Question(Static):
    """The text of a question, shown as it was typed."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text), markup=False)
