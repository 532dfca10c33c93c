"""The plan screen: placement and speed of a model, controls to change the plan, and loading with it. Owns which plan is
shown and when to request the next. The service computes plans (`client.plan`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Click
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable
from app.protocol.plan import PlanRequest
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.context import AppContext
from tui.plan.display import DeviceBars, SpeedCurve, describe_load, headline, machine_text, remedy_text
from tui.widgets.dialogs import InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.protocol.plan import PlanReport


_LEAST_CTX, _MOST_CTX = 512, 1 << 20
_SEQUENCES = (1, 2, 4, 8, 16, 32)
_LAYERS = "layers:"
OnStep = Callable[[str, int], None]
"""Takes the id of a control and the steps it changes. Called, not posted: the next key must find the change applied."""
_LABEL_COLUMNS, _WIDEST_LABEL_COLUMNS = 16, 32  # by the width of the control
_VALUE_COLUMNS = 22  # such as ◀ 28 of 28, planned ▶
_FAR = 4

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
    yield "kv_type", "Cache", "{}", kv_types, kv_type
    yield "n_sequences", "Parallel", "{}", sorted({*_SEQUENCES, n_sequences}), n_sequences


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
        super().__init__(_text(state, _LABEL_COLUMNS), markup=False)
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


def _text(state: StepperState, n_label_columns: int) -> str:
    less, more = "◀" if state.has_less else " ", "▶" if state.has_more else " "
    room = n_label_columns - 1
    label = state.label if len(state.label) <= room else f"{state.label[: room - 1]}…"
    return printable(f"{label:<{n_label_columns}}{less} {state.value} {more}")


class PlanScreen(FeatureScreen):
    """The plan of one model on one machine."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "plan.tcss"]
    FEATURE = "plan"
    TABLE = PLAN_COMMANDS
    AUTO_FOCUS = ""  # there are no controls before the first plan
    KEYS = Stepper.KEYS
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (76, "-usual")]  # noqa: RUF012 - Textual declares it so
    BINDINGS = PLAN_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._request = PlanRequest()
        self._report: PlanReport | None = None
        self._n_fitting: int | None = None  # layers on GPUs in the planner's own plan
        self._is_sure = False  # the effect of loading was shown, and nothing has changed since

    def body(self) -> Iterable[Widget]:
        with VerticalScroll(can_focus=False):
            yield Static(id="headline", markup=False)
            yield DeviceBars()
            with Horizontal():
                yield Vertical(id="steppers")
                yield SpeedCurve()
            yield Static(id="warnings", markup=False)
            yield OptionList(id="remedies", markup=False)

    def on_mount(self) -> None:
        self.query_one("#remedies", OptionList).border_title = "Suggestions: Enter applies one"
        self.query_one("#remedies").display = False
        self._headline.update("Scanning this machine…")

    def on_screen_resume(self) -> None:
        self._replan()

    @property
    def _headline(self) -> Static:
        return self.query_one("#headline", Static)

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

    def ask_for_model(self) -> None:
        value = self._request.model
        self.app.push_screen(InputDialog("Plan which model?", self._use_model, value=value, explanation=_ABOUT_MODELS))

    def ask_for_machine(self) -> None:
        value, about = ", ".join(filter(None, (*self._request.vram, self._request.ram))), _ABOUT_MACHINES
        self.app.push_screen(InputDialog("Plan for which machine?", self._use_machine, value=value, explanation=about))

    def rescan(self) -> None:
        self._request = replace(self._request, is_fresh=True)
        self._replan()

    # Changes of the request

    def _step(self, control_id: str, n_steps: int) -> None:
        if self._report is not None:
            self._change(apply_step(self._request, self._report, control_id, n_steps))

    @on(OptionList.OptionSelected, "#remedies")
    def _chose_remedy(self, event: OptionList.OptionSelected) -> None:
        assert self._report is not None
        remedy = self._report.remedies[event.option_index]
        change = remedy.change
        if change.n_ctx or change.kv_type:
            n_ctx, kv_type = change.n_ctx or self._request.n_ctx, change.kv_type or self._request.kv_type
            self._change(replace(self._request, gpu_layers=None, n_ctx=n_ctx, kv_type=kv_type))
        elif change.file_type:
            self.app.copy_to_clipboard(f"localllm quantize {self._report.model} {change.file_type}")
            self.inform(f"Copied the command that quantizes it to {change.file_type}; F6 does it too.")
        else:
            self.app.copy_to_clipboard(printable(remedy.what))
            self.inform(f"Not available in the app; copied: {remedy.what}")

    async def _use_model(self, name: str) -> None:
        self._n_fitting = None
        self._change(PlanRequest(model=name.strip(), vram=self._request.vram, ram=self._request.ram))

    async def _use_machine(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        vram = tuple(part for part in parts if "=" in part)
        ram = next((part for part in parts if "=" not in part), "")
        self._change(replace(self._request, vram=vram, ram=ram, gpu_layers=None))

    # Plans

    def _change(self, request: PlanRequest) -> None:
        self._is_sure = False
        self._request = request
        if self._report is not None:
            self._show_steppers(self._report)
        self._replan()

    @work(group="plan", exclusive=True)
    async def _replan(self) -> None:
        """Show the arithmetic plan at once, and llama.cpp's after a pause in typing."""
        request, self._request = self._request, replace(self._request, is_fresh=False)
        try:
            service = await self.service()
            if self._n_fitting is None or request.gpu_layers is None:
                self._n_fitting = (await service.plan(replace(request, gpu_layers=None))).n_on_gpus
            await self._show(await service.plan(request))
            await asyncio.sleep(_QUIET_S)
            await self._show(await service.plan(replace(request, is_full=True, is_fresh=False)))
        except UserError as error:
            if self._is_whole:
                self._headline.update(printable(f"No plan: {error}"))

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

    async def _show(self, report: PlanReport) -> None:
        if not self._is_whole:
            return
        is_new = self._report is None or [d.name for d in self._report.devices] != [d.name for d in report.devices]
        self._report = report
        self._headline.update(printable(f"{report.model} on {machine_text(self._request)}\n{headline(report)}"))
        self.query_one(DeviceBars).show(report)
        self.query_one(SpeedCurve).show(report, self._n_fitting)
        if is_new:
            steppers = self.query_one("#steppers")
            await steppers.remove_children()
            await steppers.mount_all([Stepper(state, self._step) for state in plan_controls(self._request, report)])
            if self.focused is None:
                self.query(Stepper).last().focus()
        self._show_steppers(report)
        if not self._is_sure:
            self._show_warnings("\n".join(f"! {warning}" for warning in report.warnings))
        if report.is_full:
            remedies = self.query_one("#remedies", OptionList)
            highlighted = remedies.highlighted
            remedies.clear_options()
            remedies.add_options(Option(printable(remedy_text(report, i))) for i in range(len(report.remedies)))
            remedies.display = bool(report.remedies)
            if report.remedies:
                remedies.highlighted = min(highlighted or 0, len(report.remedies) - 1)

    def _show_steppers(self, report: PlanReport) -> None:
        for stepper, state in zip(self.query(Stepper), plan_controls(self._request, report), strict=False):
            stepper.show(state)

    def _show_warnings(self, text: str) -> None:
        warnings = self.query_one("#warnings", Static)
        warnings.display = bool(text)
        warnings.update(printable(text))
