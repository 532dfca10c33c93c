"""A plan as text: verdict, memory bars per device, and speed over layers on GPUs in Braille dots. Not textual-plot: it
adds numpy to the app (190 to 390 ms of import on two cores), and distinguishes its points only by colour."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from app.common.terminal import printable
from offload.format import format_memory, format_speed

if TYPE_CHECKING:
    from app.protocol.plan import DevicePlan, PlanReport, PlanRequest


_VERDICTS = {"fits": "Fits", "tight": "Fits tightly", "partial": "Partly offloaded", "wont_run": "Does not fit"}
_LEGEND = "  █ weights  ▓ cache  ▒ compute  ░ other  · free"
_NAME_COLUMNS = 18
_LEAST_BAR_COLUMNS = 8
_BLANK = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row of a cell's dots
_DOTS_ACROSS, _DOTS_DOWN = 2, 4
_CURRENT, _MEASURED, _END = "◆", "×", "┊"
_LABEL_COLUMNS = 6
_LEAST_COLUMNS, _LEAST_ROWS = 8, 2
_ROOM_ABOVE = 1.08
_AXIS_COLUMNS = 22


def headline(report: PlanReport) -> str:
    parts = [_VERDICTS[report.verdict]]
    if report.decode_tps is not None:
        parts.append(f"{format_speed(report.decode_tps)} tok/s (± {report.uncertainty:.0%})")
    if report.best_tps is not None and report.verdict in ("partial", "wont_run"):
        parts.append(f"{format_speed(report.best_tps)} with enough memory")
    if report.first_token_s is not None:
        parts.append(f"first token of 2,048 after {report.first_token_s:.1f} s")
    return " · ".join(parts)


def machine_text(request: PlanRequest) -> str:
    if request.is_here:
        return "this machine"
    return " + ".join(filter(None, (*request.vram, request.ram and f"{request.ram} RAM")))


def device_lines(report: PlanReport, n_columns: int) -> list[str]:
    lines = []
    for device in report.devices:
        name = f"{device.name}{f' {device.description}' if device.description else ''}"
        name = name if len(name) <= _NAME_COLUMNS else f"{name[: _NAME_COLUMNS - 1]}…"
        head = f"{name:<{_NAME_COLUMNS}} {device.layers:>3} of {report.n_layers} layers "
        room = n_columns - len(head)
        bar = _bar(device, room) if room >= _LEAST_BAR_COLUMNS else ""
        parts = [f"{sign} {format_memory(size)}" for sign, size in _sections(device) if size]
        if device.left_bytes < 0:
            parts.append(f"! {format_memory(-device.left_bytes)} over {format_memory(device.free_bytes)} free")
        else:
            parts.append(f"· {format_memory(device.left_bytes)} of {format_memory(device.total_bytes)}")
        lines += [f"{head}{bar}", f"  {'  '.join(parts)}"]
    return [*lines, _LEGEND]


def remedy_text(report: PlanReport, index: int) -> str:
    remedy = report.remedies[index]
    gained = "speed unknown" if remedy.decode_tps is None else f"{format_speed(remedy.decode_tps)} tok/s"
    return f"{remedy.what}: {gained}; {remedy.cost}"


def describe_load(request: PlanRequest, report: PlanReport) -> str:
    """Return what loading will do; `report` may still belong to the previous request."""
    setting = report.setting
    parts = [
        f"context {request.n_ctx or setting.ctx:,}",
        f"cache {request.kv_type or setting.kv_type}",
        f"{request.n_sequences or setting.sequences} parallel",
    ]
    if request.gpu_layers is not None:
        parts += [f"{count} layers on {name}" for name, count in request.gpu_layers.items()]
    text = f"{report.model} reloads with {', '.join(parts)}. Running answers stop."
    is_too_large = report.verdict == "wont_run" and report.gpu_layers == request.gpu_layers
    return f"! {report.warnings[0]} {text}" if is_too_large and report.warnings else text


def _sections(device: DevicePlan) -> Iterable[tuple[str, int]]:
    sizes = (device.weights_bytes, device.kv_bytes, device.compute_bytes, device.extras_bytes)
    return zip("█▓▒░", sizes, strict=True)


def _bar(device: DevicePlan, n_columns: int) -> str:
    """Return a bar as long as the free memory, or the used memory if that is more; every part has at least one cell."""
    most = max(device.free_bytes, device.n_bytes, 1)
    bar = "".join(sign * max(1, round(size / most * n_columns)) for sign, size in _sections(device) if size)
    return bar[:n_columns].ljust(n_columns, "·") if device.left_bytes > 0 else bar[:n_columns].ljust(n_columns, "!")


class BrailleCanvas:
    """`n_columns` × `n_rows` cells of eight dots. Positions are fractions of width and height, from the lower left
    corner."""

    def __init__(self, n_columns: int, n_rows: int) -> None:
        self._n_columns = n_columns
        self._n_rows = n_rows
        self._dots = [[0] * n_columns for _ in range(n_rows)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x0, y0), (x1, y1) = self._dot(*start), self._dot(*end)
        n_steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(n_steps + 1):
            x, y = x0 + round((x1 - x0) * step / n_steps), y0 + round((y1 - y0) * step / n_steps)
            self._dots[y // _DOTS_DOWN][x // _DOTS_ACROSS] |= _BITS[x % _DOTS_ACROSS][y % _DOTS_DOWN]

    def mark(self, x: float, y: float, sign: str) -> None:
        column, row = self._dot(x, y)
        self._marks[row // _DOTS_DOWN, column // _DOTS_ACROSS] = sign

    def upright(self, x: float, sign: str) -> None:
        """Draw a column of `sign` at `x` in empty cells."""
        column = self._dot(x, 0.0)[0] // _DOTS_ACROSS
        for row in range(self._n_rows):
            if not self._dots[row][column]:
                self._marks.setdefault((row, column), sign)

    def rows(self) -> list[str]:
        return [
            "".join(
                self._marks.get((row, column)) or (chr(_BLANK + bits) if bits else " ")
                for column, bits in enumerate(cells)
            )
            for row, cells in enumerate(self._dots)
        ]

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a position, counted from the upper left corner."""
        across, down = self._n_columns * _DOTS_ACROSS - 1, self._n_rows * _DOTS_DOWN - 1
        return round(min(max(x, 0.0), 1.0) * across), down - round(min(max(y, 0.0), 1.0) * down)


def curve_lines(report: PlanReport, n_fitting: int | None, n_columns: int, n_rows: int) -> list[str]:
    """Return the curve and its legend in at most `n_columns` × `n_rows`. `n_fitting` is the number of GPU layers of the
    automatic plan, None if unknown."""
    if len(report.curve) < 2:
        return _without_curve(report)
    explained = _explained(report, n_fitting, n_columns)
    across, down = n_columns - _LABEL_COLUMNS - 1, n_rows - len(explained) - 1
    if across < _LEAST_COLUMNS or down < _LEAST_ROWS:
        return explained
    measured = measured_points(report)
    most = max(*report.curve, *measured.values()) * _ROOM_ABOVE
    last = len(report.curve) - 1
    canvas = BrailleCanvas(across, down)
    points = [(index / last, tps / most) for index, tps in enumerate(report.curve)]
    for start, end in pairwise(points):
        canvas.line(start, end)
    if n_fitting is not None and n_fitting < last:
        canvas.upright(n_fitting / last, _END)
    for count, tps in measured.items():
        canvas.mark(min(count, last) / last, tps / most, _MEASURED)
    here = min(report.n_on_gpus, last)
    canvas.mark(here / last, (report.decode_tps or report.curve[here]) / most, _CURRENT)
    labels = {0: format_speed(most), down - 1: "0"}
    lines = [f"{labels.get(row, ''):>{_LABEL_COLUMNS}}│{text}" for row, text in enumerate(canvas.rows())]
    axis = f"0{f' layers on GPUs {last}':─>{across - 1}}" if across > _AXIS_COLUMNS else f"0{last:>{across - 1}}"
    return [*lines, " " * (_LABEL_COLUMNS + 1) + axis, *explained]


def measured_points(report: PlanReport) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in report.measured:
        if run.kind == "decode" and run.gpu_layers is not None:
            found.setdefault(run.gpu_layers, []).append(run.tps)
    return {count: median(rates) for count, rates in sorted(found.items())}


def _explained(report: PlanReport, n_fitting: int | None, n_columns: int) -> list[str]:
    tps = "?" if report.decode_tps is None else format_speed(report.decode_tps)
    parts = [f"{_CURRENT} plan: {report.n_on_gpus} layers, {tps} tok/s"]
    if n_fitting is not None and n_fitting < report.n_layers:
        parts.append(f"{_END} memory limit: {n_fitting}")
    if measured_points(report):
        parts.append(f"{_MEASURED} measured")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= n_columns:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _without_curve(report: PlanReport) -> list[str]:
    if any(device.is_gpu for device in report.devices):
        why = "No curve: the GPU's memory bandwidth is unknown."
    else:
        why = "No curve: without a GPU all layers run on the CPU."
    runs = [run.tps for run in report.measured if run.kind == "decode"]
    if not runs or report.decode_tps is None:
        return [why]
    off = report.decode_tps / median(runs) - 1
    return [why, f"Measured here: {format_speed(median(runs))} tok/s (answers: {len(runs)}); predicted: {off:+.0%}."]


class DeviceBars(Widget):
    """Two rows per device, and a legend."""

    def __init__(self) -> None:
        super().__init__()
        self._report: PlanReport | None = None

    def show(self, report: PlanReport) -> None:
        is_as_tall = self._report is not None and len(self._report.devices) == len(report.devices)
        self._report = report
        self.styles.height = 2 * len(report.devices) + 1
        self.refresh(layout=not is_as_tall)

    def render(self) -> RenderResult:
        if self._report is None:
            return ""
        lines = device_lines(self._report, self.content_size.width)
        return Content(printable("\n".join(lines)))


class SpeedCurve(Widget):
    """Tokens per second over layers on the fastest GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._report: PlanReport | None = None
        self._n_fitting: int | None = None

    def show(self, report: PlanReport, n_fitting: int | None) -> None:
        self._report, self._n_fitting = report, n_fitting
        self.refresh()

    def render(self) -> RenderResult:
        if self._report is None:
            return ""
        size = self.content_size
        return Content(printable("\n".join(curve_lines(self._report, self._n_fitting, size.width, size.height))))
