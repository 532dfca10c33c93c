"""A question that is answered with one line: a title, a path, a value.

Owns the asking. Whether the answer will do is decided by who asks, with a UserError where not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.terminal import printable, printable_line
from quantizer.errors import UserError

__all__ = ["AskLine"]


class AskLine(ModalScreen[None]):
    """Asks until `take` raises no UserError, or the person gives up. `take` gets the line as it was typed; `title` is
    words of ours."""

    CSS_PATH = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="ask-cancel", tooltip="Change nothing"),
    ]

    def __init__(
        self, title: str, take: Callable[[str], Awaitable[None]], *, value: str = "", explanation: str = ""
    ) -> None:
        super().__init__()
        self._title = title
        self._take = take
        self._value = printable_line(value)
        self._explanation = printable(explanation)

    def compose(self) -> ComposeResult:
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "Enter takes it · Esc cancels"
            yield Static(self._explanation, markup=False, id="explanation")
            field = Input(self._value, compact=True, select_on_focus=False)
            field.cursor_blink = False
            yield field
            yield Static("", markup=False, id="fault")

    def on_mount(self) -> None:
        self.query_one("#explanation").display = bool(self._explanation)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._offer(event.value)

    @work(exclusive=True)
    async def _offer(self, line: str) -> None:
        fault = self.query_one("#fault", Static)
        fault.update("…")
        try:
            await self._take(line)
        except UserError as error:
            fault.update(printable(str(error)))
        else:
            self.dismiss()
