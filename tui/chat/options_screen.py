"""The form for the options of a chat's answers, with a name to save them as a preset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from app.chat.conversation import Scalar
from app.chat.sampling_options import CHAT_OPTIONS, FILE_OPTIONS
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError

_PRESET = "preset"
_ABOUT_PRESET = "save these and the system prompt as a preset"


class TextField(TextArea):
    """A field of up to four rows for a long text, which may be pasted; Enter applies the form, Ctrl+J starts a row."""

    @dataclass
    class Submitted(Message):
        """The user pressed Enter."""

    def __init__(self, text: str, name: str, meaning: str) -> None:
        super().__init__(printable(text), compact=True, highlight_cursor_line=False, id=name, placeholder=meaning)
        self.cursor_blink = False

    async def _on_key(self, event: Key) -> None:
        row, last_row = self.cursor_location[0], self.document.line_count - 1
        if event.key == "enter":
            self.post_message(self.Submitted())
        elif event.key == "ctrl+j":
            self.insert("\n")
        elif event.key == "up" and row == 0:
            self.screen.focus_previous()
        elif event.key == "down" and row == last_row:
            self.screen.focus_next()
        else:
            return
        event.stop()
        event.prevent_default()


class _Fields(VerticalScroll, inherit_bindings=False):
    """The fields; the cursor keys go from one to the next instead of scrolling."""


class OptionsScreen(ModalScreen[None]):
    """Asks until `take` accepts the texts by option and the preset's name (may be empty) without a UserError, or the
    user cancels."""

    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="options-cancel", tooltip="Cancel without changes"),
        Binding("up", "app.focus_previous", "Field above", id="options-up", tooltip="Go to the field above"),
        Binding("down", "app.focus_next", "Field below", id="options-down", tooltip="Go to the field below"),
    ]

    def __init__(
        self, options: Mapping[str, Scalar], take: Callable[[Mapping[str, str], str], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._values = {name: str(value) for name, value in options.items()}
        self._take = take

    def compose(self) -> ComposeResult:
        with Vertical(id="options") as panel:
            panel.border_title = "Options of the answers"
            panel.border_subtitle = "Enter applies · Esc cancels"
            with _Fields(id="fields", can_focus=False):
                for option in CHAT_OPTIONS:
                    new_field = TextField if option.name in FILE_OPTIONS else _line
                    field = new_field(self._values.get(option.name, ""), option.name, option.meaning)
                    yield from self._row(option.name, option.meaning, field)
            yield from self._row(_PRESET, _ABOUT_PRESET, _line("", _PRESET, _ABOUT_PRESET))
            yield Static("Empty fields use the model's defaults.", markup=False, id="about")
            yield Static("", markup=False, id="fault")

    def _row(self, name: str, meaning: str, field: Input | TextField) -> ComposeResult:
        with Horizontal():
            yield Static(name, markup=False, classes="name")
            field.tooltip = meaning
            yield field

    @on(Input.Submitted)
    @on(TextField.Submitted)
    def _submitted(self, event: Message) -> None:
        event.stop()
        texts = {str(field.id): field.value for field in self.query(Input)}
        self._offer(texts | {str(field.id): field.text for field in self.query(TextField)})

    @work(exclusive=True)
    async def _offer(self, texts: Mapping[str, str]) -> None:
        fault = self.query_one("#fault", Static)
        fault.update("…")
        try:
            await self._take(texts, texts[_PRESET].strip())
        except UserError as error:
            fault.update(printable(str(error)))
        else:
            self.dismiss()


def _line(value: str, name: str, meaning: str) -> Input:
    field = Input(printable_line(value), compact=True, id=name, placeholder=meaning)
    field.cursor_blink = False
    return field
