"""A plan as text and bars.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.format import format_memory, format_speed

if TYPE_CHECKING:
    from app.protocol.plan import DevicePlan, PlanReport, PlanRequest

__all__ = ["describe_load", "device_lines", "headline", "machine_text", "remedy_text"]

_VERDICTS = {
    "fits": "Fits",
    "tight": "Fits tightly",
    "partial": "Partly offloaded",
    "wont_run": "Does not fit",
}
_LEGEND = "  █ weights  ▓ cache  ▒ compute  ░ other  · free"
_NAME_COLUMNS = 18
_LEAST_BAR_COLUMNS = 8


def headline(report: PlanReport) -> str:
    """Return the verdict and the speeds, the most important first."""
    parts = [_VERDICTS[report.verdict]]
    if report.decode_tps is not None:
        parts.append(f"{format_speed(report.decode_tps)} tok/s (± {report.uncertainty:.0%})")
    if report.best_tps is not None and report.verdict in ("partial", "wont_run"):
        parts.append(f"{format_speed(report.best_tps)} with enough memory")
    if report.first_token_s is not None:
        parts.append(f"first token of 2,048 after {report.first_token_s:.1f} s")
    return " · ".join(parts)


def machine_text(request: PlanRequest) -> str:
    """Return the name of the planned machine."""
    if request.is_here:
        return "this machine"
    return " + ".join(filter(None, (*request.vram, request.ram and f"{request.ram} RAM")))


def device_lines(report: PlanReport, n_columns: int) -> list[str]:
    """Return two lines per device, a bar and its figures, and a legend."""
    lines = [line for device in report.devices for line in _device(device, report.n_layers, n_columns)]
    return [*lines, _LEGEND]


def remedy_text(report: PlanReport, index: int) -> str:
    """Return what a remedy does, its speed and its cost."""
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


def _device(device: DevicePlan, n_layers: int, n_columns: int) -> tuple[str, str]:
    name = f"{device.name}{f' {device.description}' if device.description else ''}"[:_NAME_COLUMNS]
    head = f"{name:<{_NAME_COLUMNS}} {device.layers:>3} of {n_layers} layers "
    room = n_columns - len(head)
    bar = _bar(device, room) if room >= _LEAST_BAR_COLUMNS else ""
    parts = [f"{sign} {format_memory(size)}" for sign, size in _sections(device) if size]
    if device.left_bytes < 0:
        parts.append(f"! {format_memory(-device.left_bytes)} over {format_memory(device.free_bytes)} free")
    else:
        parts.append(f"· {format_memory(device.left_bytes)} of {format_memory(device.total_bytes)}")
    return f"{head}{bar}", f"  {'  '.join(parts)}"


def _sections(device: DevicePlan) -> tuple[tuple[str, int], ...]:
    return (
        ("█", device.weights_bytes),
        ("▓", device.kv_bytes),
        ("▒", device.compute_bytes),
        ("░", device.extras_bytes),
    )


def _bar(device: DevicePlan, n_columns: int) -> str:
    """Return a bar as long as the free memory, or as the used memory if that is more; every part gets at least one
    cell."""
    most = max(device.free_bytes, device.n_bytes, 1)
    bar = "".join(sign * max(1, round(size / most * n_columns)) for sign, size in _sections(device) if size)
    return bar[:n_columns].ljust(n_columns, "·") if device.left_bytes > 0 else bar[:n_columns].ljust(n_columns, "!")
