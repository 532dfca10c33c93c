"""The form for sampling options, with a name to save them as a preset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.chat.conversation import Scalar
from app.chat.sampling_options import SAMPLER_OPTIONS, parse_options
from app.terminal import printable, printable_line
from quantizer.errors import UserError

__all__ = ["OptionsScreen"]

_PRESET = "preset"
_ABOUT_PRESET = "save these and the system prompt as a preset"

Take = Callable[[dict[str, int | float], str], Awaitable[None]]


class OptionsScreen(ModalScreen[None]):
    """Asks until `take` accepts the options and the name (may be empty) without a UserError, or the user cancels."""

    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="options-cancel", tooltip="Cancel without changes"),
        Binding("up", "app.focus_previous", "Field above", id="options-up", tooltip="Go to the field above"),
        Binding("down", "app.focus_next", "Field below", id="options-down", tooltip="Go to the field below"),
    ]

    def __init__(self, options: Mapping[str, Scalar], take: Take) -> None:
        super().__init__()
        self._values = {name: printable_line(str(value)) for name, value in options.items()}
        self._take = take

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="options", can_focus=False) as panel:
            panel.border_title = "Sampling options"
            panel.border_subtitle = "Enter applies · Esc cancels"
            for option in SAMPLER_OPTIONS:
                yield from self._field(option.name, option.meaning)
            yield from self._field(_PRESET, _ABOUT_PRESET)
            yield Static("Empty fields use the model's defaults.", markup=False, id="about")
            yield Static("", markup=False, id="fault")

    def _field(self, name: str, meaning: str) -> ComposeResult:
        with Horizontal():
            yield Static(name, markup=False, classes="name")
            field = Input(self._values.get(name, ""), compact=True, id=name, placeholder=meaning)
            field.tooltip = meaning
            yield field

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._offer({str(field.id): field.value for field in self.query(Input)})

    @work(exclusive=True)
    async def _offer(self, texts: Mapping[str, str]) -> None:
        try:
            await self._take(parse_options(texts), texts[_PRESET].strip())
        except UserError as error:
            self.query_one("#fault", Static).update(printable(str(error)))
        else:
            self.dismiss()
