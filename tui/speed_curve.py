"""The curve of a plan as text: tok/s against layers on the fastest GPU, with where the plan stands on it. Pure."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from offload.wording import speed
from tui.braille import BrailleCanvas

if TYPE_CHECKING:
    from app.client import PlanReport

__all__ = ["curve_lines", "measured_points"]

_HERE, _MEASURED, _END = "◆", "×", "┊"
_LABEL_COLUMNS = 6
_LEAST_COLUMNS, _LEAST_ROWS = 8, 2
_ROOM_ABOVE = 1.08
_AXIS_COLUMNS = 22


def curve_lines(report: PlanReport, n_fitting: int | None, n_columns: int, n_rows: int) -> list[str]:
    """Return the curve and a line that explains it, in `n_columns` × `n_rows` at most.

    `n_fitting` is how many layers the planner's own plan has on GPUs, None where that is not known.
    """
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
    places = [(index / last, tps / most) for index, tps in enumerate(report.curve)]
    for start, end in pairwise(places):
        canvas.line(start, end)
    if n_fitting is not None and n_fitting < last:
        canvas.upright(n_fitting / last, _END)
    for count, tps in measured.items():
        canvas.mark(min(count, last) / last, tps / most, _MEASURED)
    here = min(report.n_on_gpus, last)
    canvas.mark(here / last, (report.decode_tps or report.curve[here]) / most, _HERE)
    labels = {0: speed(most), down - 1: "0"}
    lines = [f"{labels.get(row, ''):>{_LABEL_COLUMNS}}│{text}" for row, text in enumerate(canvas.rows())]
    axis = f"0{f' layers on GPUs {last}':─>{across - 1}}" if across > _AXIS_COLUMNS else f"0{last:>{across - 1}}"
    return [*lines, " " * (_LABEL_COLUMNS + 1) + axis, *explained]


def measured_points(report: PlanReport) -> dict[int, float]:
    """Return the median of what answers really came at, by layers on GPUs."""
    found: dict[int, list[float]] = {}
    for run in report.measured:
        if run.kind == "decode" and run.gpu_layers is not None:
            found.setdefault(run.gpu_layers, []).append(run.tps)
    return {count: median(rates) for count, rates in sorted(found.items())}


def _explained(report: PlanReport, n_fitting: int | None, n_columns: int) -> list[str]:
    """Say what the marks mean, on as few lines as hold it."""
    tps = "?" if report.decode_tps is None else speed(report.decode_tps)
    parts = [f"{_HERE} here: {report.n_on_gpus} layers, {tps} tok/s"]
    if n_fitting is not None and n_fitting < report.n_layers:
        parts.append(f"{_END} memory ends: {n_fitting}")
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
    """Say why there is none, and what was measured all the same."""
    if any(device.is_gpu for device in report.devices):
        why = "No curve: how fast a GPU reads its memory is not known."
    else:
        why = "No curve: without a GPU all layers are the processor's."
    runs = [run.tps for run in report.measured if run.kind == "decode"]
    if not runs or report.decode_tps is None:
        return [why]
    off = report.decode_tps / median(runs) - 1
    return [why, f"Measured here: {speed(median(runs))} tok/s (answers: {len(runs)}); predicted: {off:+.0%}."]
