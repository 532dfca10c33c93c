"""The line at the bottom: model, state and figures."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable
from tui.status import Status

__all__ = ["StatusLine"]


class StatusLine(Static):
    """Shows as much of one Status as there is room for. Its size is fixed, so that a change redraws one row and lays
    out nothing."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._status: Status | None = None

    def show(self, status: Status) -> None:
        """Draw `status`."""
        self._status = status
        self.update(printable(status.text(self.content_size.width or None)), layout=False)

    def on_resize(self) -> None:
        """Draw what there is room for now."""
        if self._status is not None:
            self.show(self._status)
