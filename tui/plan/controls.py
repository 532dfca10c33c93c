"""The controls of a plan: context, cache type, parallel requests, layers per GPU.

Owns the values of each control and its widget. Changing a control returns another request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.widgets import Static

from app.common.terminal import printable

if TYPE_CHECKING:
    from app.protocol.plan import PlanReport, PlanRequest


_LEAST_CTX, _MOST_CTX = 512, 1 << 20
_SEQUENCES = (1, 2, 4, 8, 16, 32)
_LAYERS = "layers:"
Value = TypeVar("Value", int, str)
OnStep = Callable[[str, int], None]
"""Takes the id of a control and the steps it changes. Called, not posted: the next key must find the change applied."""
_LABEL_COLUMNS, _WIDEST_LABEL_COLUMNS = 16, 32  # by the width of the control
_VALUE_COLUMNS = 22  # such as ◀ 28 of 28, planned ▶
_FAR = 4


@dataclass(frozen=True, slots=True)
class StepperState:
    """One control: its label and its value. `has_less` and `has_more` tell in which directions it can change."""

    id: str
    label: str
    value: str
    has_less: bool
    has_more: bool


def plan_controls(request: PlanRequest, report: PlanReport) -> tuple[StepperState, ...]:
    """Return the controls for `request`, with open values from `report`."""
    n_ctx, kv_type, n_sequences = _context(request, report), _cache(request, report), _sequences(request, report)
    return (
        _state("context", "Context", _contexts(report, n_ctx), n_ctx, f"{n_ctx:,} tokens"),
        _state("cache", "Cache", _caches(report, kv_type), kv_type, kv_type),
        _state("sequences", "Parallel", _counts(n_sequences), n_sequences, str(n_sequences)),
        *(_layer_state(name, request, report) for name in _layers(request, report)),
    )


def apply_step(request: PlanRequest, report: PlanReport, control_id: str, n_steps: int) -> PlanRequest:
    """Return `request` with a control changed by `n_steps` within its limits. Layers taken off a GPU go to the CPU."""
    if control_id == "context":
        n_ctx = _context(request, report)
        return replace(request, n_ctx=_stepped(_contexts(report, n_ctx), n_ctx, n_steps))
    if control_id == "cache":
        kv_type = _cache(request, report)
        return replace(request, kv_type=_stepped(_caches(report, kv_type), kv_type, n_steps))
    if control_id == "sequences":
        n_sequences = _sequences(request, report)
        return replace(request, n_sequences=_stepped(_counts(n_sequences), n_sequences, n_steps))
    name, layers = control_id.removeprefix(_LAYERS), _layers(request, report)
    most = report.n_layers - sum(layers.values()) + layers[name]
    return replace(request, gpu_layers=layers | {name: min(max(layers[name] + n_steps, 0), most)})


def _state(control_id: str, label: str, values: Sequence[Value], value: Value, shown: str) -> StepperState:
    return StepperState(control_id, label, shown, value != values[0], value != values[-1])


def _layer_state(name: str, request: PlanRequest, report: PlanReport) -> StepperState:
    layers = _layers(request, report)
    is_full = sum(layers.values()) >= report.n_layers
    chosen = "" if request.gpu_layers is not None else ", planned"
    value = f"{layers[name]} of {report.n_layers}{chosen}"
    return StepperState(f"{_LAYERS}{name}", f"Layers: {name}", value, layers[name] > 0, not is_full)


def _contexts(report: PlanReport, n_ctx: int) -> tuple[int, ...]:
    """Return powers of two up to the trained context, the trained and the current one."""
    most = report.n_ctx_train or _MOST_CTX
    sizes = {size for power in range(_LEAST_CTX.bit_length() - 1, 31) if (size := 1 << power) <= most}
    return tuple(sorted(sizes | {most, n_ctx}))


def _caches(report: PlanReport, kv_type: str) -> tuple[str, ...]:
    return report.kv_types if kv_type in report.kv_types else (kv_type, *report.kv_types)


def _counts(n_sequences: int) -> tuple[int, ...]:
    return tuple(sorted({*_SEQUENCES, n_sequences}))


def _context(request: PlanRequest, report: PlanReport) -> int:
    return request.n_ctx or report.setting.ctx


def _cache(request: PlanRequest, report: PlanReport) -> str:
    return request.kv_type or report.setting.kv_type


def _sequences(request: PlanRequest, report: PlanReport) -> int:
    return request.n_sequences or report.setting.sequences


def _layers(request: PlanRequest, report: PlanReport) -> dict[str, int]:
    """Return layers per GPU as requested or as planned."""
    planned = {device.name: device.layers for device in report.devices if device.is_gpu}
    requested = request.gpu_layers
    return planned if requested is None else {name: requested.get(name, 0) for name in planned}


def _stepped(values: Sequence[Value], value: Value, n_steps: int) -> Value:
    return values[min(max(values.index(value) + n_steps, 0), len(values) - 1)]


class Stepper(Static, can_focus=True):
    """One row: label, and value between arrows that show the possible directions."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("left", "step(-1)", "Less", id="value-less", tooltip="Decrease the value"),
        Binding("right", "step(1)", "More", id="value-more", tooltip="Increase the value"),
        Binding(
            "shift+left,pagedown",
            f"step(-{_FAR})",
            "Much less",
            id="value-far-less",
            tooltip="Decrease it by a large step",
        ),
        Binding(
            "shift+right,pageup",
            f"step({_FAR})",
            "Much more",
            id="value-far-more",
            tooltip="Increase it by a large step",
        ),
        Binding("up", "app.focus_previous", "Up", id="value-up", tooltip="Go to the value above"),
        Binding("down", "app.focus_next", "Down", id="value-down", tooltip="Go to the value below"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.key, key.action, key.description, id=key.id, tooltip=key.tooltip, show=False) for key in KEYS
    ]

    def __init__(self, state: StepperState, on_step: OnStep) -> None:
        super().__init__(_text(state, _LABEL_COLUMNS), markup=False)
        self.state = state
        self._on_step = on_step

    def show(self, state: StepperState) -> None:
        """Show another value."""
        if state != self.state:
            self.state = state
            self._draw()

    def on_resize(self) -> None:
        """Show as much of the label as there is room for."""
        self._draw()

    def action_step(self, n_steps: int) -> None:
        """Change the value."""
        self._on_step(self.state.id, n_steps)

    def on_click(self, event: Click) -> None:
        """Decrease on the left half of the value, increase on the right."""
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
