"""Dialogs of the models screen: a model's metadata, and the choice of a quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.terminal import printable_line
from quantizer.errors import UserError
from tui.models.rows import format_fit, format_rate, format_size
from tui.widgets.dialogs import TableDialog

if TYPE_CHECKING:
    from app.protocol.library import TypeChoice

__all__ = ["ModelInfoScreen", "QuantizeScreen", "type_line"]

_HEADINGS = f"{'type':<10}{'size':>9}{'loss':>9}  {'fit':<9}{'speed':>11}"
_USUAL = "Q4_K_M"


class ModelInfoScreen(TableDialog):
    """A model's metadata, which need not be printable."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c,enter", "dismiss(None)", "Close", id="card-close", tooltip="Go back"),
    ]

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__(printable_line(title), [(printable_line(label), printable_line(text)) for label, text in rows])


class QuantizeScreen(ModalScreen[dict[str, object] | None]):
    """A list of types and a field for a size; `n_bytes` is the model's current size. Returns the arguments of a
    quantize job."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="quantize-close", tooltip="Cancel"),
    ]

    def __init__(self, name: str, n_bytes: int, choices: Sequence[TypeChoice]) -> None:
        super().__init__()
        self._name = printable_line(name)
        self._n_bytes = n_bytes
        self._choices = {choice.quant.name: choice for choice in choices}

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel") as panel:
            panel.border_title = "Quantize"
            panel.border_subtitle = "Enter starts, Esc cancels"
            yield Static(f"{self._name} is {format_size(self._n_bytes)} now. Choose a type or a size.", markup=False)
            yield Static(_HEADINGS, markup=False)
            yield OptionList(*(Option(Content(type_line(each)), id=name) for name, each in self._choices.items()))
            yield Static("", id="about", markup=False)
            yield Input(placeholder="or a maximum size, such as 4.2GB: selects the best mix", compact=True)
            yield Static("loss: perplexity increase on Llama-3-8B (6.23), from llama.cpp.", markup=False)

    def on_mount(self) -> None:
        types = self.query_one(OptionList)
        types.highlighted = next((i for i, name in enumerate(self._choices) if name == _USUAL), 0)
        types.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the type."""
        choice = self._choices[event.option_id or ""]
        needs = "; computes an importance matrix first, which takes a while" if choice.needs_imatrix else ""
        self.query_one("#about", Static).update(printable_line(f"{choice.description}{needs}"), layout=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the type."""
        choice = self._choices[event.option_id or ""]
        arguments: dict[str, object] = {"file_type": choice.quant.name}
        self.dismiss(arguments | ({"imatrix": "auto"} if choice.needs_imatrix else {}))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the size."""

        from app.settings.parsing import parse_byte_size

        try:
            n_bytes = parse_byte_size(event.value)
        except UserError as error:
            self.query_one("#about", Static).update(printable_line(str(error)), layout=False)
        else:
            self.dismiss({"n_bytes": n_bytes})


def type_line(choice: TypeChoice) -> str:
    """Return a type as one line: name, size, loss, fit, speed."""
    loss = "?" if choice.perplexity_loss is None else f"+{choice.perplexity_loss:.4f}"
    quant = choice.quant
    name = printable_line(quant.name)
    return f"{name:<10}{format_size(quant.n_bytes):>9}{loss:>9}  {format_fit(quant.fit):<9}{format_rate(quant.fit):>11}"
