"""A question that one line of text answers."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

__all__ = ["TextQuestion"]


class TextQuestion(ModalScreen[str | None]):
    """Enter gives the text, Esc gives None."""

    CSS_PATH = "text_question.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="question-close", tooltip="Go back"),
    ]

    def __init__(self, title: str, explanation: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._explanation = explanation
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical() as panel:
            panel.border_title = self._title
            panel.border_subtitle = "Enter takes it, Esc closes"
            yield Static(self._explanation, markup=False)
            yield Input(self._value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
