"""A quiet line between the messages."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable

__all__ = ["Notice"]


class Notice(Static):
    """Something worth a line: what the engine noted, or what a command did."""

    def __init__(self, text: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(f"· {printable(text)}", markup=False, id=id)

    def say(self, text: str) -> None:
        """Say something else."""
        self.update(f"· {printable(text)}")
