"""The line at the bottom: model, state and figures."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable
from tui.status import Status

__all__ = ["StatusLine"]


class StatusLine(Static):
    """Shows one Status. Its size is fixed, so that a change redraws one row and lays out nothing."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, status: Status) -> None:
        """Draw `status`."""
        self.update(printable(status.text()), layout=False)
