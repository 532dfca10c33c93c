"""A question that is answered by choosing: what to do before something is done for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.terminal import printable

__all__ = ["AskChoice"]


class AskChoice(ModalScreen[str | None]):
    """Ends with the id of what was chosen, or None with Escape. The first is at hand; `title` is words of ours."""

    CSS_PATH = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="choice-cancel", tooltip="Change nothing"),
    ]

    def __init__(self, title: str, explanation: str, choices: Mapping[str, str]) -> None:
        super().__init__()
        self._title = title
        self._explanation = printable(explanation)
        self._choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "Enter chooses · Esc cancels"
            yield Static(self._explanation, markup=False, id="explanation")
            options = [Option(printable(text), choice_id) for choice_id, text in self._choices.items()]
            yield OptionList(*options, markup=False, compact=True)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)
