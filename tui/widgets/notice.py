"""A quiet line between the turns."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable

__all__ = ["Notice"]


class Notice(Static):
    """Something worth a line: what the engine noted, or what a command did."""

    def __init__(self, text: str) -> None:
        super().__init__(f"· {printable(text)}", markup=False)
