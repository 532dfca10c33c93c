"""Dialogs about models: the metadata of one, and the choice of a quantization."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from app.common.terminal import printable_line
from app.settings.parsing import parse_byte_size
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import is_lossy
from quantizer.system.errors import UserError
from tui.models.rows import format_size, short_rate
from tui.models.table import fit_mark
from tui.widgets.dialogs import TableDialog

if TYPE_CHECKING:
    from app.protocol.library import TypeChoice


_TYPE_HEADINGS = f"{'type':<9}{'size':>8}  {'loses':<16}  {'fits':<8}{'writes':>11}"
# Up to which loss of perplexity (of Llama-3-8B's 6.23) a type loses how much.
_LOSSES = (
    (0.01, "almost nothing"),
    (0.06, "very little"),
    (0.25, "little"),
    (0.7, "some"),
    (2.0, "much"),
    (float("inf"), "very much"),
)
_QUANTIZE_KEYS = Content.from_markup(
    "[$text-accent]enter[/] [$text-muted]quantizes in the background[/]   "
    "[$text-accent]tab[/] [$text-muted]a size[/]   [$text-accent]esc[/] [$text-muted]cancel[/]"
)
_USUAL = "Q4_K_M"


class ModelInfoScreen(TableDialog):
    """A model's metadata, which need not be printable."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c,enter", "dismiss(None)", "Close", id="card-close", tooltip="Go back")
    ]

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__(printable_line(title), [(printable_line(label), printable_line(text)) for label, text in rows])


class _Types(OptionList):
    class NothingSelected(Message):
        """Enter was pressed without a selected type."""

    def action_select(self) -> None:
        if self.highlighted is None:
            self.post_message(self.NothingSelected())
        else:
            super().action_select()


class QuantizeScreen(ModalScreen[dict[str, object] | None]):
    """The types that a model can be quantized to, which `fetch` returns, and a field for a size; `n_bytes` and `type`
    are those of today. Returns the arguments of a quantize job. It opens with a single letter, so what is typed may be
    meant for the search field: no type is selected, and Enter alone starts nothing."""

    CSS_PATH = "panel.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    VERTICAL_BREAKPOINTS = [(0, "-short"), (12, "-tall")]  # noqa: RUF012 - the same
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="quantize-close", tooltip="Cancel")
    ]

    def __init__(
        self, name: str, n_bytes: int, type_: str, fetch: Callable[[], Awaitable[Sequence[TypeChoice]]]
    ) -> None:
        super().__init__()
        self._name, self._type = printable_line(name), printable_line(type_)
        self._n_bytes = n_bytes
        self._fetch = fetch
        self._choices: dict[str, TypeChoice] = {}

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel"):
            title = Content.assemble(
                (f"Quantize {self._name}", "bold $text-accent"),
                (f"   today {self._type or 'a model'}, {format_size(self._n_bytes)}", "$text-muted"),
            )
            yield Static(title, id="quantize-title")
            yield Static("", markup=False, id="headings", classes="aside")
            yield _Types(markup=False)
            yield Static(f"Preparing: computing the sizes that {self._name} would have …", id="about", markup=False)
            yield Input(
                placeholder="or a maximum size, such as 4.2GB: selects the best mix",
                compact=True,
                select_on_focus=False,
            )
            yield Static("", markup=False, id="losses", classes="aside")
            yield Static(_QUANTIZE_KEYS, classes="keys")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        _: Worker[None] = self.run_worker(self._load)

    async def _load(self) -> None:
        try:
            choices = await self._fetch()
        except UserError as error:
            self._explain(str(error))
            return
        offered, n_larger = offered_types(choices, self._type, self._n_bytes)
        self._choices = {choice.quant.name: choice for choice in offered}
        recommended = recommended_type(offered)
        types = self.query_one(OptionList)
        self.query_one("#headings", Static).update(_TYPE_HEADINGS)
        types.set_options(
            Option(
                type_line(choice, self._type, is_recommended=choice is recommended),
                id=choice.quant.name,
                disabled=choice.quant.name == self._type,
            )
            for choice in offered
        )
        types.highlighted = None
        self._explain("Down selects a type; a digit begins a size." if offered else "There is no smaller type.")
        self.query_one("#losses", Static).update(_about_losses(self._type, n_larger))

    @on(_Types.NothingSelected)
    def _nothing_selected(self) -> None:
        if self._choices:
            self._explain("Nothing is selected yet: Down selects a type, a digit begins a size, Esc goes back.")

    def _explain(self, text: str) -> None:
        self.query_one("#about", Static).update(printable_line(text))

    def on_key(self, event: Key) -> None:
        """A digit is the beginning of a size, wherever the focus is."""
        field = self.query_one(Input)
        if event.character and event.character.isdigit() and not field.has_focus:
            event.stop()
            self.set_focus(field)  # at once: the next key is for it too
            field.insert_text_at_cursor(event.character)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if choice := self._choices.get(event.option_id or ""):
            self._explain(about_type(choice))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if choice := self._choices.get(event.option_id or ""):
            arguments: dict[str, object] = {"file_type": choice.quant.name}
            self.dismiss(arguments | ({"imatrix": "auto"} if choice.needs_imatrix else {}))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            n_bytes = parse_byte_size(event.value)
        except UserError as error:
            self._explain(str(error))
        else:
            self.dismiss({"n_bytes": n_bytes})


def offered_types(choices: Sequence[TypeChoice], today: str, n_bytes: int) -> tuple[list[TypeChoice], int]:
    """Return the types to offer, the largest first, and how many are left out: a model that is quantized `today` gets
    larger in them, and no better."""
    by_size = sorted(choices, key=lambda choice: -choice.quant.n_bytes)
    if not is_lossy(today):
        return by_size, 0
    offered = [choice for choice in by_size if choice.quant.n_bytes < n_bytes or choice.quant.name == today]
    return offered, len(by_size) - len(offered)


def recommended_type(offered: Sequence[TypeChoice]) -> TypeChoice | None:
    """Return the usual type if it is offered and runs, else the largest that runs well."""
    running = [choice for choice in offered if choice.quant.fit.verdict != "wont_run"]
    usual = next((choice for choice in running if choice.quant.name == _USUAL), None)
    return usual or next((choice for choice in running if choice.quant.fit.runs_well), None)


def loss_words(perplexity_loss: float | None) -> str:
    """Return in words what a type costs, by the perplexity that llama.cpp measured it to add."""
    if perplexity_loss is None:
        return "not measured"
    return next(words for limit, words in _LOSSES if perplexity_loss <= limit)


def about_type(choice: TypeChoice) -> str:
    """Return what the selected type is, costs and takes; how fast it reads only where types were measured here."""
    fit = choice.quant.fit
    parts = [choice.description]
    if choice.perplexity_loss is not None:
        parts.append(f"+{choice.perplexity_loss:.4f} perplexity")
    if fit.prefill_tps and fit.decode_tps:
        parts.append(
            f"reads {format_speed(fit.prefill_tps)}, writes {format_speed(fit.decode_tps)} tokens a second here"
        )
    if choice.needs_imatrix:
        parts.append("computes an importance matrix first, which takes a while")
    return "; ".join(parts)


def type_line(choice: TypeChoice, today: str, *, is_recommended: bool) -> Content:
    quant = choice.quant
    is_today = quant.name == today
    loses = "" if is_today else loss_words(choice.perplexity_loss)
    loses = f"{loses} more" if loses and choice.perplexity_loss is not None and is_lossy(today) else loses
    mark = "today" if is_today else "recommended" if is_recommended else ""
    fit = fit_mark(quant.fit)
    return Content.assemble(
        (f"{printable_line(quant.name):<9}", "$foreground"),
        (f"{format_size(quant.n_bytes):>8}", "$text-muted"),
        f"  {loses:<16}  ",
        fit,
        " " * (8 - fit.cell_length),
        f"{short_rate(quant.fit):>11}",
        (f"  {mark}", "$text-muted" if is_today else "bold $text-accent"),
    ).rstrip()


def _about_losses(today: str, n_larger: int) -> str:
    if not is_lossy(today):
        return "What a type loses: by the perplexity that llama.cpp measured it to add to Llama-3-8B's."
    larger = f" {n_larger} larger types are left out: they would only take more space." if n_larger else ""
    return (
        f"This file has lost what {today} loses, and no type brings it back: each adds its own loss to that.{larger} "
        "From the original model (F16, BF16) the same type loses less."
    )
