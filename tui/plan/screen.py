"""The plan screen: placement and speed of a model, controls to change the plan, and loading with it. Owns which plan is
shown and when to request the next. The service computes plans (`client.plan`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable, printable_line
from app.protocol.plan import PlanRequest
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.context import AppContext
from tui.design.header import ScreenHeader
from tui.plan.display import (
    MemoryTable,
    SpeedCurve,
    aside,
    describe_load,
    draft_lines,
    headline,
    machine_text,
    plan_facts,
    remedy_line,
    remedy_text,
    sign_of,
)
from tui.widgets.dialogs import ChoiceDialog, InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.protocol.plan import PlanReport


_LEAST_CTX, _MOST_CTX = 512, 1 << 20
_SEQUENCES = (1, 2, 4, 8, 16, 32)
_LAYERS = "layers:"
OnStep = Callable[[str, int], None]
"""Takes the id of a control and the steps it changes. Called, not posted: the next key must find the change applied."""
_LABEL_COLUMNS, _WIDEST_LABEL_COLUMNS = 17, 32  # by the width of the control
_VALUE_COLUMNS = 22  # such as ◀ 28 of 28, planned ▶
_FAR = 4
_MARGIN_COLUMNS = 2  # of the screen, on each side of a list

_STALE_S = 300.0  # a plan that is older is made again at the next visit: other programs have other memory by then
_WORKING_EVERY_S = 0.5
_WORKING = "◐◓◑◒"
_START, _COPY = "start", "copy"
_QUIET_S = 0.4  # between the last key and llama.cpp's exact plan
_ABOUT_MODELS = "A name, a path to a GGUF, or org/repo:QUANT from the hub; only the header is downloaded."
_ABOUT_MACHINES = (
    "GPUs and memory, such as: RTX 3060=12GiB, RTX 3060=12GiB, 32GiB@45GB/s. "
    "A part without = is system memory; omitted parts are this machine's. Empty means this machine."
)
PLAN_COMMANDS = CommandTable(
    list_command("plan-load", "Load", "l", "Load the model with this plan; the second press confirms", "load_plan"),
    list_command("plan-automatic", "Automatic", "a", "Reset every value to the planner's choice", "reset_plan"),
    list_command("plan-model", "Model", "m",
                 "Plan another model: a name, a path, or org/repo:QUANT from the hub, without a download",
                 "ask_for_model"),
    list_command("plan-machine", "What if", "w",
                 "Plan for another machine, such as RTX 3060=12GiB; empty means this machine", "ask_for_machine"),
    list_command("plan-details", "Details", "d", "Show bytes by device, batches, cells and bandwidths",
                 "toggle_details"),
    *(
        list_command(f"plan-remedy-{number}", "Apply", str(number), f"Do the suggestion number {number}",
                     "apply_remedy", is_shown=False, values=(number - 1,))
        for number in range(1, 10)
    ),
    list_command("plan-look", "Refresh", "r", "Rescan this machine's memory and plan again", "rescan", is_shown=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepperState:
    """One control: its label and its value. `has_less` and `has_more` tell in which directions it can change."""

    id: str
    label: str
    value: str
    has_less: bool
    has_more: bool


def plan_controls(request: PlanRequest, report: PlanReport) -> tuple[StepperState, ...]:
    layers = _layers(request, report)
    is_full = sum(layers.values()) >= report.n_layers
    of_all = f" of {report.n_layers}{'' if request.gpu_layers is not None else ', planned'}"
    return (
        *(
            StepperState(id_, label, shown.format(value), value != values[0], value != values[-1])
            for id_, label, shown, values, value in _scales(request, report)
        ),
        *(
            StepperState(f"{_LAYERS}{name}", f"Layers: {name}", f"{count}{of_all}", count > 0, not is_full)
            for name, count in layers.items()
        ),
    )


def apply_step(request: PlanRequest, report: PlanReport, control_id: str, n_steps: int) -> PlanRequest:
    """Return `request` with a control changed by `n_steps` within its limits. Layers taken off a GPU go to the CPU."""
    for field, _, _, values, value in _scales(request, report):
        if field == control_id:
            changed: Any = values[min(max(values.index(value) + n_steps, 0), len(values) - 1)]
            return replace(request, **{field: changed})
    name, layers = control_id.removeprefix(_LAYERS), _layers(request, report)
    most = report.n_layers - sum(layers.values()) + layers[name]
    return replace(request, gpu_layers=layers | {name: min(max(layers[name] + n_steps, 0), most)})


def _scales(request: PlanRequest, report: PlanReport) -> Iterator[tuple[str, str, str, Sequence[int | str], int | str]]:
    """Yield the controls that step through values: the field of a request, label, format, values, and the one in
    effect, as requested or else as planned."""
    setting = report.setting
    n_ctx, kv_type = request.n_ctx or setting.ctx, request.kv_type or setting.kv_type
    n_sequences = request.n_sequences or setting.sequences
    most = report.n_ctx_train or _MOST_CTX
    sizes = {size for power in range(_LEAST_CTX.bit_length() - 1, 31) if (size := 1 << power) <= most}
    yield "n_ctx", "Context", "{:,} tokens", sorted(sizes | {most, n_ctx}), n_ctx
    kv_types = report.kv_types if kv_type in report.kv_types else (kv_type, *report.kv_types)
    yield "kv_type", "Cache type", "{}", kv_types, kv_type
    yield "n_sequences", "Answers at once", "{}", sorted({*_SEQUENCES, n_sequences}), n_sequences


def _layers(request: PlanRequest, report: PlanReport) -> dict[str, int]:
    planned = {device.name: device.layers for device in report.devices if device.is_gpu}
    requested = request.gpu_layers
    return planned if requested is None else {name: requested.get(name, 0) for name in planned}


class Stepper(Static, can_focus=True):
    """One row: label, and value between arrows that show the possible directions."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("left", "step(-1)", "Less", id="value-less", tooltip="Decrease the value"),
        Binding("right", "step(1)", "More", id="value-more", tooltip="Increase the value"),
        Binding("shift+left,pagedown", f"step(-{_FAR})", "Much less", id="value-far-less",
                tooltip="Decrease it by a large step"),
        Binding("shift+right,pageup", f"step({_FAR})", "Much more", id="value-far-more",
                tooltip="Increase it by a large step"),
        Binding("up", "app.focus_previous", "Up", id="value-up", tooltip="Go to the value above"),
        Binding("down", "app.focus_next", "Down", id="value-down", tooltip="Go to the value below"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.key, key.action, key.description, id=key.id, tooltip=key.tooltip, show=False) for key in KEYS
    ]

    def __init__(self, state: StepperState, on_step: OnStep) -> None:
        super().__init__(_text(state, _LABEL_COLUMNS))
        self.state = state
        self._on_step = on_step

    def show(self, state: StepperState) -> None:
        if state != self.state:
            self.state = state
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def action_step(self, n_steps: int) -> None:
        self._on_step(self.state.id, n_steps)

    def on_click(self, event: Click) -> None:
        n_columns = max(self.content_size.width - self._n_label_columns, 1)
        self.action_step(1 if event.x - self._n_label_columns >= n_columns // 2 else -1)

    @property
    def _n_label_columns(self) -> int:
        return min(max(self.content_size.width - _VALUE_COLUMNS, _LABEL_COLUMNS), _WIDEST_LABEL_COLUMNS)

    def _draw(self) -> None:
        self.update(_text(self.state, self._n_label_columns), layout=False)


def _text(state: StepperState, n_label_columns: int) -> Content:
    less, more = "◀" if state.has_less else " ", "▶" if state.has_more else " "
    room = n_label_columns - 1
    label = state.label if len(state.label) <= room else f"{state.label[: room - 1]}…"
    return Content.assemble(
        (printable(f"{label:<{n_label_columns}}"), "$text-muted"),
        (less, "$text-accent"),
        (f" {printable(state.value)} ", "$foreground"),
        (more, "$text-accent"),
    )


class PlanScreen(FeatureScreen):
    """The plan of one model on one machine."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "plan.tcss"]
    FEATURE = "plan"
    TABLE = PLAN_COMMANDS
    AUTO_FOCUS = ""  # there are no controls before the first plan
    KEYS = Stepper.KEYS
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (76, "-usual"), (120, "-wide")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - the same
    BINDINGS = PLAN_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._request = PlanRequest()
        self._is_of_chat = True  # the model of the open chat is planned, until another one is asked for
        self._report: PlanReport | None = None
        self._advised: PlanReport | None = None  # the plan of this request with its advice, which takes longer
        self._planned_s = 0.0
        self._n_fitting: int | None = None  # layers on GPUs in the planner's own plan
        self._is_sure = False  # the effect of loading was shown, and nothing has changed since
        self._has_details = False
        self._working: Timer | None = None
        self._n_working = 0

    def body(self) -> Iterable[Widget]:
        with VerticalScroll(can_focus=False, id="plan"):
            yield Static(id="about", markup=False)
            yield Static(id="headline", markup=False)
            yield Static(id="aside", markup=False)
            yield Static(id="warnings", markup=False)
            with Horizontal(id="middle"):
                with Vertical(id="picture"):
                    yield Static("Speed", classes="part-title", id="curve-title")
                    yield SpeedCurve()
                    yield Static("Memory", classes="part-title", id="under-title")
                    yield MemoryTable()
                with VerticalScroll(can_focus=False, id="side"):
                    yield Static("Plan with", classes="part-title", id="with-title")
                    yield Vertical(id="steppers")
                    yield Static("Memory", classes="part-title", id="side-title")
                    yield MemoryTable()
            yield Static("What would help", classes="part-title", id="remedies-title")
            yield OptionList(id="remedies", markup=False)
            yield Static("A draft model beside it", classes="part-title", id="drafts-title")
            yield Static(id="drafts", markup=False)

    def on_mount(self) -> None:
        self._show_remedies(None)
        for title in self.query(".part-title"):
            title.visible = False
        self._working = self.set_interval(_WORKING_EVERY_S, self._show_working, pause=True)

    def on_screen_resume(self) -> None:
        """Plan the model of the open chat; a plan of it that is there and not old stays as it is."""
        model = self.app_context.connection.state.model
        if self._is_of_chat and model != self._request.model:
            self._report, self._n_fitting = None, None
            self._change(PlanRequest(model=model, vram=self._request.vram, ram=self._request.ram))
        elif self._report is None or self.app_context.clock() - self._planned_s >= _STALE_S:
            self._replan()
        else:
            self._update_measured()

    def show_facts(self, header: ScreenHeader) -> None:
        if self._report is None:
            super().show_facts(header)
        else:
            header.show_facts(plan_facts(self._report))

    # Command handlers

    async def load_plan(self) -> None:
        """Describe what loading will do; the second call does it."""
        report, request = self._report, self._request
        if report is None:
            return
        if not request.is_here:
            self.inform("This plan is for another machine: W with an empty line returns to this one.")
        elif not self._is_sure:
            self._is_sure = True
            self._show_warnings(f"{describe_load(request, report)} Press L again to confirm.")
        else:
            self._is_sure = False
            self._reload(request)  # in the background: the keys of the screen go on working

    def reset_plan(self) -> None:
        self._change(PlanRequest(model=self._request.model, vram=self._request.vram, ram=self._request.ram))

    def toggle_details(self) -> None:
        self._has_details = not self._has_details
        self.set_class(self._has_details, "-details")
        self._show_memory()

    def ask_for_model(self) -> None:
        value = self._request.model
        self.app.push_screen(InputDialog("Plan which model?", self.use_model, value=value, explanation=_ABOUT_MODELS))

    def ask_for_machine(self) -> None:
        value, about = ", ".join(filter(None, (*self._request.vram, self._request.ram))), _ABOUT_MACHINES
        self.app.push_screen(InputDialog("Plan for which machine?", self._use_machine, value=value, explanation=about))

    def rescan(self) -> None:
        self._request = replace(self._request, is_fresh=True)
        self._replan()

    async def apply_remedy(self, index: int) -> None:
        """Do a suggestion: change the plan, quantize the model, or copy what has to be done elsewhere."""
        if self._advised is None:
            if self._report is not None:
                self.inform("What would help is still being computed.")
            return
        if index >= len(self._advised.remedies):
            return
        remedy = self._advised.remedies[index]
        change = remedy.change
        if change.n_ctx or change.kv_type:
            n_ctx, kv_type = change.n_ctx or self._request.n_ctx, change.kv_type or self._request.kv_type
            self._change(replace(self._request, gpu_layers=None, n_ctx=n_ctx, kv_type=kv_type))
        elif change.file_type:
            self._quantize(remedy_text(remedy), self._advised.model, change.file_type)
        else:
            self.app.copy_to_clipboard(printable(remedy.what))
            self.inform(f"Copied: {remedy.what}")

    @work(group="quantize", exclusive=True)
    async def _quantize(self, title: str, model: str, file_type: str) -> None:
        command = f"localllm quantize {model} {file_type}"
        choices = {_START: "Start it as a job; the model stays as it is", _COPY: f"Copy the command: {command}"}
        explanation = f"Writes another file of {model} beside it. F8 shows how far it is; it takes minutes."
        chosen = await self.app.push_screen_wait(ChoiceDialog(title, explanation, choices))
        with self.warn_on_error():
            if chosen == _COPY:
                self.app.copy_to_clipboard(printable(command))
                self.inform(f"Copied: {command}")
            elif chosen == _START:
                await (await self.service()).start_job("quantize", {"source": model, "file_type": file_type})
                self.inform(f"{model} is being quantized to {file_type}: F8 shows how far it is.")

    # Changes of the request

    def _step(self, control_id: str, n_steps: int) -> None:
        if self._report is not None:
            self._change(apply_step(self._request, self._report, control_id, n_steps))

    @on(OptionList.OptionSelected, "#remedies")
    async def _chose_remedy(self, event: OptionList.OptionSelected) -> None:
        await self.apply_remedy(event.option_index)

    async def use_model(self, name: str) -> None:
        self._n_fitting = None
        self._is_of_chat = not name.strip()
        model = name.strip() or self.app_context.connection.state.model
        self._change(PlanRequest(model=model, vram=self._request.vram, ram=self._request.ram))

    async def _use_machine(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        vram = tuple(part for part in parts if "=" in part)
        ram = next((part for part in parts if "=" not in part), "")
        self._change(replace(self._request, vram=vram, ram=ram, gpu_layers=None))

    # Plans

    def _change(self, request: PlanRequest) -> None:
        self._is_sure = False
        self._request = request
        self._advised = None  # what helps another plan may harm this one
        self._show_warnings("")
        self._show_remedies_pending()
        if self._report is not None:
            self._show_steppers(self._report)
        self._replan()

    @work(group="plan", exclusive=True)
    async def _replan(self) -> None:
        """Show the arithmetic plan at once, and llama.cpp's after a pause in typing."""
        request, self._request = self._request, replace(self._request, is_fresh=False)
        self._begin_working()
        try:
            service = await self.service()
            if self._n_fitting is None or request.gpu_layers is None:
                self._n_fitting = (await service.plan(replace(request, gpu_layers=None))).n_on_gpus
            await self._show(await service.plan(request))
            await asyncio.sleep(_QUIET_S)
            await self._show(await service.plan(replace(request, is_full=True, is_fresh=False)))
            self._planned_s = self.app_context.clock()
        except UserError as error:
            if self._is_whole:
                self._report = self._advised = None
                self._show_failure(error)
        finally:
            if self._working is not None:
                self._working.pause()

    @work(group="measured", exclusive=True)
    async def _update_measured(self) -> None:
        """Take the answers since the last visit into the plan, which costs no scan of the machine."""
        with contextlib.suppress(UserError):  # the plan stays as it was
            found = await (await self.service()).plan(self._request)
            if self._report is not None and self._report.model == found.model:
                await self._show(replace(self._report, measured=found.measured))

    @work(group="reload", exclusive=True)
    async def _reload(self, request: PlanRequest) -> None:
        try:
            model_id = await (await self.service()).reload(request)
        except UserError as error:
            self._show_warnings(str(error))
            return
        await self.app_context.connection.use_model(model_id)
        self.inform("Loading: Esc returns to the chat.")

    @property
    def _is_whole(self) -> bool:
        """Whether the screen has its widgets: an app that ends removes them before it cancels a plan."""
        return bool(self.query("#headline"))

    # Display

    def _begin_working(self) -> None:
        self._n_working = 0
        if self._working is not None:
            self._working.resume()
        if self._report is None:
            self._show_working()

    def _show_working(self) -> None:
        """Say that a plan is made, with a sign that moves; one that is there stays to be read."""
        self._n_working += 1
        if self._is_whole:
            doing = f"{_WORKING[self._n_working % len(_WORKING)]} planning…"
            model = self._report.model if self._report else self._request.model or "the default model"
            self._static("about").update(Content.styled(printable(f"{model} · {doing}"), "$text-muted"))

    def _show_failure(self, error: UserError) -> None:
        model = self._request.model or "the default model"
        self._static("about").update(
            Content.styled(printable(f"{model} on {machine_text(self._request)}"), "$text-muted")
        )
        text = Content.assemble(("✕ ", "$text-error"), (printable(f"No plan: {error}"), "$bright"))
        self._static("headline").update(text)
        self._static("aside").update("M plans another model, R tries again.")
        self._show_warnings("")
        self._show_remedies(None)

    async def _show(self, report: PlanReport) -> None:
        if not self._is_whole:
            return
        is_new = self._report is None or [d.name for d in self._report.devices] != [d.name for d in report.devices]
        self._report = report
        self._static("about").update(
            Content.assemble(
                (printable_line(report.model), "bold $text-accent"),
                (printable(f" on {machine_text(self._request)}"), "$text-muted"),
            )
        )
        sign, color = sign_of(report)
        self._static("headline").update(Content.assemble((f"{sign} ", color), (printable(headline(report)), "$bright")))
        self._static("aside").update(printable(aside(report)))
        self.show_facts(self.query_one(ScreenHeader))
        self.query_one(SpeedCurve).show(report, self._n_fitting)
        is_curve = len(report.curve) > 1
        self._static("curve-title").update("Tokens a second, by layers on the GPU" if is_curve else "Speed of answers")
        self._show_memory()
        for title in self.query(".part-title"):
            title.visible = True
        if is_new:
            steppers = self.query_one("#steppers")
            await steppers.remove_children()
            await steppers.mount_all([Stepper(state, self._step) for state in plan_controls(self._request, report)])
            if self.focused is None:
                self.query(Stepper).last().focus()
        self._show_steppers(report)
        if not self._is_sure:
            self._show_warnings("\n".join(f"▲ {warning}" for warning in report.warnings))
        if report.is_full:
            self._advised = report
            self._show_remedies(report)

    def _show_memory(self) -> None:
        for table in self.query(MemoryTable):
            table.show(self._report, has_details=self._has_details)

    def _show_remedies(self, report: PlanReport | None) -> None:
        drafts = self._static("drafts")
        drafts.display = self._static("drafts-title").display = report is not None and bool(report.drafts)
        drafts.update("" if report is None else printable("\n".join(draft_lines(report))))
        remedies = self.query_one("#remedies", OptionList)
        has_any = report is not None and bool(report.remedies)
        remedies.display = self._static("remedies-title").display = has_any
        if report is None or not has_any:
            remedies.clear_options()
            return
        highlighted = remedies.highlighted
        room = max(self.size.width - 2 * _MARGIN_COLUMNS, 1)
        remedies.clear_options()
        remedies.add_options(Option(remedy_line(report, index, room)) for index in range(len(report.remedies)))
        remedies.highlighted = min(highlighted or 0, len(report.remedies) - 1)

    def _show_remedies_pending(self) -> None:
        """Show that advice is computed, in as many lines as there were: what is below stays where it is."""
        remedies = self.query_one("#remedies", OptionList)
        n_lines = remedies.option_count
        if n_lines and remedies.display:
            remedies.clear_options()
            remedies.add_options(Option(text, disabled=True) for text in ("… computing", *[""] * (n_lines - 1)))

    def on_resize(self) -> None:
        if self._advised is not None:
            self._show_remedies(self._advised)

    def _show_steppers(self, report: PlanReport) -> None:
        for stepper, state in zip(self.query(Stepper), plan_controls(self._request, report), strict=False):
            stepper.show(state)

    def _show_warnings(self, text: str) -> None:
        warnings = self._static("warnings")
        warnings.display = bool(text)
        warnings.update(printable(text))

    def _static(self, name: str) -> Static:
        return self.query_one(f"#{name}", Static)
