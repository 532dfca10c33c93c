"""Modal dialogs: a choice from a list, and one line of text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.terminal import printable, printable_line
from quantizer.errors import UserError

__all__ = ["ChoiceDialog", "InputDialog"]

_NUMBERS = frozenset("123456789")


class ChoiceDialog(ModalScreen[str | None]):
    """Returns the id of the choice, or None after Escape. The first choice is highlighted; `title` is trusted text. If
    `is_numbered`, the keys 1 to 9 choose too."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="choice-cancel", tooltip="Cancel without changes"),
    ]

    def __init__(self, title: str, explanation: str, choices: Mapping[str, str], *, is_numbered: bool = False) -> None:
        super().__init__()
        self._title = title
        self._explanation = printable(explanation)
        self._choices = choices
        self._is_numbered = is_numbered

    def compose(self) -> ComposeResult:
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = f"{'Number or ' if self._is_numbered else ''}Enter selects · Esc cancels"
            yield Static(self._explanation, markup=False, id="explanation")
            options = [Option(text, choice_id) for choice_id, text in self._lines()]
            yield OptionList(*options, markup=False, compact=True, classes="-numbered" if self._is_numbered else None)

    def on_mount(self) -> None:
        self.query_one("#explanation").display = bool(self._explanation)

    def on_key(self, event: Key) -> None:
        """Choose by number."""
        number = int(event.key) if self._is_numbered and event.key in _NUMBERS else 0
        if 0 < number <= len(self._choices):
            event.stop()
            self.dismiss(list(self._choices)[number - 1])

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def _lines(self) -> Iterator[tuple[str, str]]:
        width = len(str(len(self._choices)))
        for number, (choice_id, text) in enumerate(self._choices.items(), start=1):
            yield choice_id, printable(f"{number:{width}}  {text}" if self._is_numbered else text)


class InputDialog(ModalScreen[None]):
    """Asks until `take` accepts the line without a UserError, or the user cancels. `title` is trusted text."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="ask-cancel", tooltip="Cancel without changes"),
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
            panel.border_subtitle = "Enter confirms · Esc cancels"
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
