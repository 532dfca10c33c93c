"""A plan as text: a sentence about speed, the curve over layers on GPUs, memory by device, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from app.common.terminal import counted, printable, printable_line
from app.protocol.plan import measured_speed
from offload.format import format_bandwidth, format_memory
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE
from tui.design.braille import BrailleCanvas, colored
from tui.design.words import duration, short_count, speed_words

if TYPE_CHECKING:
    from app.protocol.plan import DevicePlan, PlanRemedy, PlanReport, PlanRequest


# By verdict: sign and colour; the sentence beside it says it in words.
_SIGNS = {
    "fits": ("●", "$text-success"),
    "tight": ("▲", "$text-warning"),
    "partial": ("▲", "$text-warning"),
    "wont_run": ("✕", "$text-error"),
}
_KINDS = (
    ("weights", "█", "weights_bytes", "$text-accent"),
    ("cache", "▓", "kv_bytes", "$text-success"),
    ("computing", "▒", "compute_bytes", "$text-warning"),
    ("beside it", "░", "extras_bytes", "$text-muted"),
)
_CURRENT, _MEASURED, _END, _PREDICTED = "◆", "●", "┊", "┄"
_COLORS = {_CURRENT: "bold $bright", _MEASURED: "$text-success", _PREDICTED: "$text-muted"}
_LABEL_COLUMNS = 6
_LEAST_COLUMNS, _LEAST_ROWS = 8, 2
_ROOM_ABOVE = 1.08
_AXIS_COLUMNS = 26
_FEWER_LAYERS = 8  # the headline compares with an eighth of the layers less
_PROMPT_TOKENS = 2048  # of the prompt whose time is told
_NOTABLE = 0.9  # of the speed: what is slower is worth a sentence
_DEVICE_COLUMNS, _KIND_COLUMNS = 13, 11
_KEY_COLUMNS, _GAIN_COLUMNS, _BAR_COLUMNS = 3, 30, 12
_WIDE_REMEDY_COLUMNS = 96


def sign_of(report: PlanReport) -> tuple[str, str]:
    """Return the sign of a plan's verdict and its colour."""
    return _SIGNS[report.verdict]


def headline(report: PlanReport) -> str:
    """Return what matters about a plan in one or two sentences: what was measured here, else what is predicted."""
    where, measured = _where(report), measured_speed(report.measured, report.n_on_gpus)
    if report.verdict == "wont_run":
        tps = report.best_tps or report.decode_tps
        return f"{where}." + ("" if tps is None else f" With enough memory: about {speed_words(tps)}.")
    if measured.decode_tps is not None:
        reads = "" if measured.prefill_tps is None else f"reads {format_speed(measured.prefill_tps)}, "
        said = f"{where}: {reads}writes {speed_words(measured.decode_tps)} · {measured.where}"
    elif report.decode_tps is not None:
        said = f"{where}: about {speed_words(report.decode_tps)}"
    else:
        said = f"{where}; the speed is not known"
    tps = measured.decode_tps or report.decode_tps
    compared = "" if tps is None else _compared(report, tps)
    return f"{said}. {compared}".rstrip()


def aside(report: PlanReport) -> str:
    """Return what else there is to say about the speed."""
    measured, parts = measured_speed(report.measured, report.n_on_gpus), []
    runs = report.verdict != "wont_run"
    if measured.decode_tps is not None:
        parts.append(f"median of {counted(measured.n_answers, 'answer')}")
        if report.decode_tps is not None:
            parts.append(f"predicted {format_speed(report.decode_tps)}")
    prompt_s = report.first_token_s
    if measured.prefill_tps is not None:
        prompt_s = _PROMPT_TOKENS / measured.prefill_tps
    elif report.prefill_tps is not None and runs:
        reads = f"reads about {speed_words(float(f'{report.prefill_tps:.2g}'))}"
        parts.append(reads if measured.decode_tps is None else f"{reads}, not measured yet")
    if prompt_s is not None and runs:
        parts.append(f"a prompt of {_PROMPT_TOKENS:,} tokens is read in {_seconds(prompt_s)}")
    if measured.decode_tps is None and report.decode_tps is not None:
        parts.append("predicted, not measured here yet")
    return " · ".join(parts)


def _where(report: PlanReport) -> str:
    gpus = [device for device in report.devices if device.is_gpu]
    the_gpu = "the GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    if report.verdict == "wont_run":
        return "Does not fit"
    if not gpus:
        return "On the processor"
    n_layers, n_on = report.n_layers, report.n_on_gpus
    if not n_on:
        return (
            "Answers on the processor, prompts on the GPU"
            if report.prompt_gpu
            else "All on the processor, none on the GPU"
        )
    return f"{f'All {n_layers}' if n_on >= n_layers else f'{n_on} of {n_layers}'} layers on {the_gpu}"


def _compared(report: PlanReport, tps: float) -> str:
    """Return what the speed would be otherwise, where that differs much."""
    n_on = report.n_on_gpus
    if report.warnings and report.verdict == "partial":
        return ""  # the warning below says it, and why
    if report.best_tps is not None and report.decode_tps is not None and report.decode_tps < _NOTABLE * report.best_tps:
        return f"With enough memory it would be {format_speed(tps * report.best_tps / report.decode_tps)}."
    fewer = n_on - max(n_on // _FEWER_LAYERS, 1)
    if 0 < fewer < n_on < len(report.curve) and report.curve[fewer] < _NOTABLE * report.curve[n_on]:
        return f"At {fewer} layers it would fall to {format_speed(tps * report.curve[fewer] / report.curve[n_on])}."
    return ""


def _seconds(seconds: float) -> str:
    return "less than 0.1 s" if seconds < 0.05 else f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def machine_text(request: PlanRequest) -> str:
    if request.is_here:
        return "this machine"
    return " + ".join(filter(None, (*request.vram, request.ram and f"{request.ram} RAM")))


def engine_words(report: PlanReport) -> Iterator[str]:
    """Yield what the engine's people want to know."""
    setting = report.setting
    yield f"predicted ± {report.uncertainty:.0%}, behind {setting.depth:,} tokens of context"
    yield f"{setting.cells:,} KV cells in {setting.kv_type}, batches of {setting.ubatch}"
    if report.prompt_gpu:
        yield f"{report.prompt_gpu} fetches {format_memory(report.fetched_bytes)} for each batch of a prompt"
    yield f"flash attention {'on' if setting.flash_attention else 'off'}"
    for device in report.devices:
        if device.bytes_per_s:
            yield f"{device.name}: {format_bandwidth(device.bytes_per_s)} GB/s of memory bandwidth"


def memory_lines(report: PlanReport, n_columns: int) -> list[Content]:
    """Return the bytes by kind and device as a table, as many devices side by side as there is room for, each with a
    bar of what it has free."""
    n_beside = max((n_columns - _KIND_COLUMNS) // _DEVICE_COLUMNS, 1)
    lines: list[Content] = []
    for begin in range(0, len(report.devices), n_beside):
        devices = report.devices[begin : begin + n_beside]
        if lines:
            lines.append(Content())
        lines += _memory_block(devices, report.n_layers)
    return lines


def _memory_block(devices: Sequence[DevicePlan], n_layers: int) -> Iterator[Content]:
    def row(sign: str, label: str, cells: Sequence[tuple[str, str]], color: str = "$text-muted") -> Content:
        head = Content.assemble((f"{sign} ", color), (f"{label:<{_KIND_COLUMNS - 2}}", "$text-muted"))
        return head + Content.assemble(*((f"{text:>{_DEVICE_COLUMNS}}", style) for text, style in cells))

    names = [printable_line(each.name) for each in devices]
    yield row(" ", "", [(set_cell_size(name, min(cell_len(name), _DEVICE_COLUMNS - 1)), "bold") for name in names])
    bars = Content.assemble(*(part for each in devices for part in (Content("  "), _bar(each, _DEVICE_COLUMNS - 2))))
    yield Content(" " * _KIND_COLUMNS) + bars
    layers = [f"{each.layers} of {n_layers}" if each.is_gpu else str(each.layers) for each in devices]
    yield row(" ", "layers", [(text, "$foreground") for text in layers])
    for label, sign, field, color in _KINDS:
        sizes = [getattr(each, field) for each in devices]
        if any(sizes):
            yield row(sign, label, [(format_memory(n) if n else "–", "$foreground") for n in sizes], color)
    left = [
        (format_memory(each.left_bytes), "bold $bright")
        if each.left_bytes >= 0
        else (f"{format_memory(-each.left_bytes)} over", "bold $text-error")
        for each in devices
    ]
    yield row("·", "left", left)
    yield row(" ", "of", [(format_memory(each.total_bytes), "$text-muted") for each in devices])


def _bar(device: DevicePlan, n_columns: int) -> Content:
    """Return a bar as long as the free memory, or the used memory if that is more; every part has at least one cell."""
    most = max(device.free_bytes, device.n_bytes, 1)
    parts = [
        (sign * max(1, round(getattr(device, field) / most * n_columns)), color)
        for _, sign, field, color in _KINDS
        if getattr(device, field)
    ]
    used = Content.assemble(*parts)[:n_columns]
    rest = n_columns - used.cell_length
    filled = ("!" * rest, "$text-error") if device.left_bytes < 0 else ("·" * rest, "$faint")
    return used + Content.styled(*filled)


def remedy_text(remedy: PlanRemedy) -> str:
    """Return what to do in people's words; options are the command line's."""
    change = remedy.change
    size = f" {remedy.what[remedy.what.index('(') :]}" if "(" in remedy.what else ""
    if change.kv_type:
        return f"Keep the cache in {change.kv_type}{size.replace(' of cache', '')}"
    if change.n_ctx:
        return f"Shorten the context to {change.n_ctx:,} tokens"
    return remedy.what[:1].upper() + remedy.what[1:]


def remedy_line(report: PlanReport, index: int, n_columns: int) -> Content:
    """Return one row of what would help: its key, what to do, the speed that follows with a bar, and what it costs."""
    remedy = report.remedies[index]
    now, then = report.decode_tps, remedy.decode_tps
    if then is None:
        gain = "speed not known"
    else:
        more = f" ({then / now - 1:+.0%})" if now and report.verdict != "wont_run" else ""
        gain = f"{speed_words(then)}{more}"
    best = max((each.decode_tps or 0.0 for each in report.remedies), default=0.0)
    bar = "" if then is None or n_columns < _WIDE_REMEDY_COLUMNS else "▰" * max(round(_BAR_COLUMNS * then / best), 1)
    n_bar = _BAR_COLUMNS + 2 if n_columns >= _WIDE_REMEDY_COLUMNS else 0
    n_cost = n_columns // 4 if n_columns >= _WIDE_REMEDY_COLUMNS else 0
    n_what = max(n_columns - _KEY_COLUMNS - _GAIN_COLUMNS - n_bar - n_cost, 16)
    what = printable_line(remedy_text(remedy))
    shown = what if cell_len(what) < n_what else f"{set_cell_size(what, n_what - 2)}…"
    cost = "costs almost nothing" if remedy.cost == "almost none" else printable_line(remedy.cost)
    return Content.assemble(
        (f"{index + 1:<{_KEY_COLUMNS}}", "$text-accent"),
        (set_cell_size(shown, n_what), "$foreground"),
        (f"{bar:<{_BAR_COLUMNS}}  " if n_bar else "", "$text-success"),
        (f"{gain:<{_GAIN_COLUMNS}}", "$bright"),
        (cost if n_cost else "", "$text-muted"),
    )


def draft_lines(report: PlanReport) -> Iterator[str]:
    """Yield what draft models would do, the best first; only that one where none pays. None without advice."""
    shown = report.drafts if any(draft.pays for draft in report.drafts) else report.drafts[:1]
    for draft in shown:
        gain = draft.gain_text if draft.pays else f"does not pay here, {draft.gain_text}"
        yield f"{draft.what} ({format_memory(draft.bytes)}): {gain}"
    if any(draft.pays and draft.file_type == DRAFT_COPY_TYPE for draft in shown):
        yield "Settings (F5), draft model: copy makes the copy in the background and uses it."


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


def curve_lines(report: PlanReport, n_fitting: int | None, n_columns: int, n_rows: int) -> list[str]:
    """Return the curve and its legend in at most `n_columns` × `n_rows`. `n_fitting` is the number of GPU layers of the
    automatic plan, None if unknown. Where there is no curve, the answers that were measured are drawn."""
    if len(report.curve) < 2:
        return answers_lines(report, n_columns, n_rows)
    explained = _explained(report, n_fitting, n_columns)
    across, down = n_columns - _LABEL_COLUMNS - 1, n_rows - len(explained) - 1
    if across < _LEAST_COLUMNS or down < _LEAST_ROWS:
        return explained
    measured = measured_points(report)
    most = max(*report.curve, *measured.values()) * _ROOM_ABOVE
    last = len(report.curve) - 1
    canvas = BrailleCanvas(across, down)
    canvas.polyline([(index / last, tps / most) for index, tps in enumerate(report.curve)])
    if n_fitting is not None and n_fitting < last:
        canvas.upright(n_fitting / last, _END)
    here = min(report.n_on_gpus, last)
    canvas.mark(here / last, (report.decode_tps or report.curve[here]) / most, _CURRENT)
    for count, tps in measured.items():
        canvas.mark(min(count, last) / last, tps / most, _MEASURED)
    return [*_with_axis(canvas.rows(), most), _axis(across, "layers on the GPU", last), *explained]


def answers_lines(report: PlanReport, n_columns: int, n_rows: int) -> list[str]:
    """Return the speeds of the answers that were measured here, oldest first, beside the predicted one."""
    why = ["Layers move between processor and GPU; this machine has no GPU that is used."]
    if any(device.is_gpu for device in report.devices):
        why = ["No curve over layers: the memory bandwidth of the GPU is not known."]
    rates = [run.tps for run in report.measured if run.kind == "decode"]
    across, down = n_columns - _LABEL_COLUMNS - 1, n_rows - 3
    yet = "Not measured yet: the first answers of this model show here how fast they were."
    if not rates and report.decode_tps is None:
        return [yet, *why]
    legend = f"{_MEASURED} {counted(len(rates), 'answer')} measured here" if rates else "not measured yet"
    if report.decode_tps is not None:
        legend += f"  {_PREDICTED} predicted: {format_speed(report.decode_tps)}"
    if across < _LEAST_COLUMNS or down < _LEAST_ROWS:
        return [legend] if rates else [yet]
    most = max([*rates, report.decode_tps or 0.0]) * _ROOM_ABOVE
    canvas = BrailleCanvas(across, down)
    if report.decode_tps is not None:
        canvas.level(report.decode_tps / most, _PREDICTED)
    points = [((index + 0.5) / max(len(rates), 1), tps / most) for index, tps in enumerate(rates)]
    canvas.polyline(points)
    for x, y in points:
        canvas.mark(x, y, _MEASURED)
    axis = f"first{'newest answer':─>{across - 5}}" if across > _AXIS_COLUMNS else "─" * across
    return [*_with_axis(canvas.rows(), most), " " * (_LABEL_COLUMNS + 1) + axis, legend]


def _with_axis(rows: Sequence[str], most: float) -> list[str]:
    labels = {0: format_speed(most), len(rows) // 2: format_speed(most / 2), len(rows) - 1: "0"}
    return [f"{labels.get(row, ''):>{_LABEL_COLUMNS}}│{text}" for row, text in enumerate(rows)]


def _axis(across: int, what: str, last: int) -> str:
    shown = f"0{f' {what} {last}':─>{across - 1}}" if across > _AXIS_COLUMNS else f"0{last:>{across - 1}}"
    return " " * (_LABEL_COLUMNS + 1) + shown


def measured_points(report: PlanReport) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in report.measured:
        if run.kind == "decode" and run.gpu_layers is not None:
            found.setdefault(run.gpu_layers, []).append(run.tps)
    return {count: median(rates) for count, rates in sorted(found.items())}


def _explained(report: PlanReport, n_fitting: int | None, n_columns: int) -> list[str]:
    tps = "?" if report.decode_tps is None else format_speed(report.decode_tps)
    parts = [f"{_CURRENT} this plan: {report.n_on_gpus} layers, {tps}"]
    if n_fitting is not None and n_fitting < report.n_layers:
        parts.append(f"{_END} memory ends: {n_fitting}")
    if measured_points(report):
        parts.append(f"{_MEASURED} measured here")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= n_columns:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


class MemoryTable(Widget):
    """What each device holds, and what is left; below it what the engine's people want to know, if that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self._report: PlanReport | None = None
        self._has_details = False

    def show(self, report: PlanReport | None, *, has_details: bool) -> None:
        self._report, self._has_details = report, has_details
        self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:  # noqa: ARG002
        return len(self._lines(width))

    def render(self) -> RenderResult:
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, n_columns: int) -> list[Content]:
        if self._report is None:
            return []
        lines = memory_lines(self._report, n_columns)
        if self._has_details:
            words = Content.styled("\n".join(map(printable, engine_words(self._report))), "$text-muted")
            lines += [Content(), *words.wrap(max(n_columns, 1))]
        return lines


class SpeedCurve(Widget):
    """Tokens per second over layers on the fastest GPU, else of the answers so far."""

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
        lines = curve_lines(self._report, self._n_fitting, size.width, size.height)
        return colored([printable(line) for line in lines], _COLORS, "$text-accent")


def plan_facts(report: PlanReport) -> str:
    """Return the setting of a plan in a few words."""
    setting = report.setting
    return f"{short_count(setting.ctx)} context · {counted(setting.sequences, 'answer')} at once"
