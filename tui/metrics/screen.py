"""The metrics screen: what each model does now, charts and a table of the last answers, and benchmark runs compared.

The service keeps the figures of the last answers. Rates come from two snapshots of a model's counters, taken twice a
second while the screen is visible; figures of runs from the JSON that `localllm bench` prints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from operator import ge
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from rich.cells import cell_len, set_cell_size
from textual import on, work
from textual.app import RenderResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import counted, printable, printable_line
from app.protocol.plan import PlanRequest
from offload.format import format_memory
from quantizer.figures import format_figure, format_speed
from quantizer.system.errors import StorageError, UserError
from tui.commands import CommandTable, list_command
from tui.context import AppContext
from tui.design.braille import BrailleCanvas, colored
from tui.design.words import duration, model_label, relative_time
from tui.widgets.dialogs import ChoiceDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.plan import MeasuredRun
    from app.protocol.status import AnswerRecord, EngineCounters, ModelStatus, ServiceStatus


_N_KEPT = 240  # two minutes at two snapshots a second
_BLOCKS = "▁▂▃▄▅▆▇█"
_NAME_COLUMNS, _VALUE_COLUMNS = 13, 22
_Figures: TypeAlias = Mapping[tuple[str, str, str], float]
_RATE = "tok/s"  # for all other units less is better

_POLL_S = 0.5
_POLLS_PER_RUN_REFRESH = 4  # fetch the runs every so many polls
_QUICK_WORK = "decode,prefill,turns"
_MARGIN_COLUMNS = 5  # of the screen and of a text, and the scrollbar
_LEAST_CHART_COLUMNS, _LEAST_CHART_ROWS = 12, 3
_AXIS_COLUMNS = 8
_N_ANSWERS_SHOWN, _LEAST_ANSWERS, _OTHER_ROWS = 20, 4, 20
_WHEN_CELLS = len("12 Nov 2025") + 1
_MODEL_SIGNS = {"ready": ("●", "$text-success"), "loading": ("◌", "$text-warning"), "failed": ("✕", "$text-error")}
_NOT_MEASURED = "Not measured yet. Ask a model something: its speed is shown here after the first answer."
_RUN, _LEAVE = "run", "leave"
_CHOICES = {_RUN: "Measure it now", _LEAVE: "Not now"}
_USUAL_S = "one to five minutes, more for a large model"
METRICS_COMMANDS = CommandTable(
    list_command("metrics-measure", "Benchmark", "b",
                 "Benchmark the model in a separate service, after asking: it takes minutes", "measure"),
    list_command("metrics-details", "Details", "d", "Show waiting times, cache hits, KV cells and settings of models",
                 "toggle_details"),
    list_command("metrics-clear", "Clear comparison", "c", "Clear the run selected for comparison",
                 "clear_comparison"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The activity of one model between two snapshots; None for figures without events. `output_tps` sums all answers
    per second of wall time, `first_token_s` is the mean latency of those that began, `cached_share` the cached share of
    their prompt tokens."""

    output_tps: float
    first_token_s: float | None
    cached_share: float | None
    n_bytes: int
    n_cells_used: int


class MetricsHistory:
    """Snapshots and samples by model. Drops a model that disappeared, and restarts one whose worker restarted."""

    def __init__(self) -> None:
        self._snapshots: dict[str, tuple[float, EngineCounters]] = {}  # seconds of a clock, and the counters then
        self._samples: dict[str, deque[Sample]] = {}

    def take(self, status: ServiceStatus, at_s: float) -> None:
        """Record the state of all models at `at_s`, seconds of a monotonic clock."""
        for gone in self._samples.keys() - {model.id for model in status.models}:
            del self._samples[gone]
            self._snapshots.pop(gone, None)
        for model in status.models:
            samples = self._samples.setdefault(model.id, deque(maxlen=_N_KEPT))
            before_s, before = self._snapshots.pop(model.id, (at_s, None))
            if (now := model.counters) is not None:
                self._snapshots[model.id] = (at_s, now)
                # A new worker counts from 0 again.
                if before is not None and at_s > before_s and all(map(ge, _sums(now), _sums(before))):
                    samples.append(_sample(model, before, now, at_s - before_s))

    def samples(self, model_id: str) -> Sequence[Sample]:
        """Return the samples of a model, oldest first."""
        return tuple(self._samples.get(model_id, ()))


def _sums(counters: EngineCounters) -> tuple[float, ...]:
    first_s = counters.first_token_s
    n_tokens = (counters.n_prompt_tokens, counters.n_output_tokens)
    return (counters.n_finished, *n_tokens, first_s.n_samples, first_s.total_s)


def _sample(model: ModelStatus, old: EngineCounters, new: EngineCounters, between_s: float) -> Sample:
    n_first = new.first_token_s.n_samples - old.first_token_s.n_samples
    n_prompt = new.n_prompt_tokens - old.n_prompt_tokens
    n_cached = new.cached_share * new.n_prompt_tokens - old.cached_share * old.n_prompt_tokens
    waited_s = new.first_token_s.total_s - old.first_token_s.total_s
    return Sample(
        output_tps=(new.n_output_tokens - old.n_output_tokens) / between_s,
        first_token_s=waited_s / n_first if n_first else None,
        cached_share=min(max(n_cached / n_prompt, 0.0), 1.0) if n_prompt else None,
        n_bytes=model.n_bytes,
        n_cells_used=model.occupancy.n_cells_used if model.occupancy else 0,
    )


def sparkline(values: Sequence[float | None], n_columns: int, most: float | None = None) -> str:
    """Return the last `n_columns` values as blocks, newest on the right, scaled to `most` (default: their maximum);
    None leaves a gap."""
    shown = values[-n_columns:] if n_columns > 0 else ()
    top = most or max((value for value in shown if value is not None), default=0.0)
    shares = (None if value is None else min(max(value / top, 0.0), 1.0) if top else 0.0 for value in shown)
    return "".join(" " if share is None else _BLOCKS[round(share * (len(_BLOCKS) - 1))] for share in shares)


def model_lines(model: ModelStatus, samples: Sequence[Sample], n_columns: int) -> list[str]:
    room = n_columns - _NAME_COLUMNS - _VALUE_COLUMNS
    head = f"{model.id} · {model.state}"
    if model.plan is not None and model.plan.n_on_gpus:
        head += f" · {model.plan.n_on_gpus} of {model.plan.n_layers} layers on GPUs"
    if model.shares_with:
        head += f" · shares an engine with {', '.join(model.shares_with)}"
    if model.threads is not None and model.threads.words:
        head += f" · {model.threads.words}"
    if model.occupancy is None or model.counters is None:
        return [head]
    counters, occupancy = model.counters, model.occupancy
    head += f" · {occupancy.n_running} running, {occupancy.n_waiting} waiting, {counters.n_finished} finished"
    first_s = counters.first_token_s
    latency = "none yet" if first_s.p50 is None else f"{first_s.p50:.2f} s, p95 {first_s.p95 or first_s.p50:.2f}"
    tps = [sample.output_tps for sample in samples]
    cached = "none yet" if not counters.n_prompt_tokens else f"{counters.cached_share:.0%} of all"
    cells = f"{occupancy.n_cells_used:,} of {occupancy.n_cells:,}, shared"
    speeds = f"{format_speed(tps[-1]) if tps else '–'}, answers {format_speed(counters.decode_tokens_per_s)}"
    most_bytes = max((sample.n_bytes for sample in samples), default=0)
    saved = format_memory(occupancy.saved_bytes)
    if model.plan is not None and model.plan.saved_chats_bytes:
        saved += f" of {format_memory(model.plan.saved_chats_bytes)}"
    read_ahead = f"{counters.n_read_ahead_tokens:,}, {counters.n_vain_tokens:,} in vain"
    rows: tuple[tuple[str, str, Sequence[float | None], float | None], ...] = (
        ("tok/s", speeds, tps, None),
        ("first token", latency, [sample.first_token_s for sample in samples], None),
        ("cache hits", cached, [sample.cached_share for sample in samples], 1.0),
        *((("read ahead", read_ahead, (), None),) if counters.n_read_ahead_tokens else ()),
        ("memory", format_memory(model.n_bytes), [sample.n_bytes for sample in samples], most_bytes),
        *((("saved chats", saved, (), None),) if occupancy.saved_bytes else ()),
        ("KV cells", cells, [sample.n_cells_used for sample in samples], occupancy.n_cells),
    )
    # What a model runs with, and why; another program's service does not say it.
    runs_with = f"{'runs with':<{_NAME_COLUMNS}}{' · '.join(setting.words for setting in model.settings)}"
    return [
        head,
        *(
            f"{name:<{_NAME_COLUMNS}}{value:<{_VALUE_COLUMNS}}{sparkline(line, room, most)}"
            for name, value, line, most in rows
        ),
        *(wrap(runs_with, n_columns, subsequent_indent=" " * _NAME_COLUMNS) if model.settings else ()),
    ]


def summary_line(model: ModelStatus) -> Content:
    """Return one line about a model: its state, its memory and context, and what it does now."""
    sign, color = _MODEL_SIGNS.get(model.state, ("○", "$text-muted"))
    parts = [str(model.state)]
    if model.state == "ready":
        parts = [format_memory(model.n_bytes)] if model.n_bytes else []
        parts += [f"context {model.n_ctx:,} tokens"] if model.n_ctx else []
    if model.plan is not None and model.plan.n_on_gpus:
        parts.append(f"{model.plan.n_on_gpus} of {model.plan.n_layers} layers on the GPU")
    if model.shares_with:
        parts.append(f"shares an engine with {', '.join(model.shares_with)}")
    if model.occupancy is not None:
        parts.append(f"{model.occupancy.n_running} answering, {model.occupancy.n_waiting} waiting")
    if model.threads is not None and model.threads.words:
        parts.append(model.threads.words)
    return Content.assemble(
        (f"{sign} ", color),
        (printable_line(model.id), "bold $bright"),
        (printable(f"  {' · '.join(parts)}"), "$text-muted"),
    )


def answer_rows(
    answers: Sequence[AnswerRecord], now: datetime, n_columns: int, n_most: int = _N_ANSWERS_SHOWN
) -> list[Content]:
    """Return the newest answers as a table: when, of which model, tokens read and written, the wait for the first word,
    and the speed."""
    columns = (("when", _WHEN_CELLS), ("read", 8), ("written", 9), ("first word", 12), ("a second", 10))
    n_model = max(n_columns - sum(width for _, width in columns) - 1, 7)

    def row(when: str, model: str, *cells: str, style: str) -> Content:
        numbers = "".join(f"{text:>{width}}" for text, (_, width) in zip(cells, columns[1:], strict=True))
        shown = set_cell_size(model if cell_len(model) < n_model else model_label(model, n_model - 1), n_model)
        return Content.assemble((f"{when:<{_WHEN_CELLS}}", "$text-muted"), (shown, style), (numbers, style))

    lines = [row("when", "model", *(name for name, _ in columns[1:]), style="$text-muted")]
    for answer in answers[:n_most]:
        cells = (
            f"{answer.n_prompt_tokens:,}",
            f"{answer.n_output_tokens:,}",
            _seconds(answer.first_token_s),
            "" if answer.decode_tps is None else format_speed(answer.decode_tps),
        )
        when = relative_time(datetime.fromtimestamp(answer.at_s, now.tzinfo), now)
        lines.append(row(when, printable_line(answer.model), *cells, style="$foreground"))
    return lines


def with_stored(status: ServiceStatus, stored: Sequence[AnswerRecord]) -> Sequence[AnswerRecord]:
    """Return the answers of the service with those that chats got before it started, the newest first. Without a
    start nobody knows which of them are the same."""
    since_s = status.answers_since_s or min((answer.at_s for answer in status.answers), default=inf)
    return (*status.answers, *(answer for answer in stored if answer.at_s < since_s))


def answers_title(status: ServiceStatus, shown: Sequence[AnswerRecord], now: datetime) -> Content:
    """Return the title of the answers, and what they are: the service keeps them until it ends."""
    title = Content.styled("Last answers", "bold $text-accent")
    if len(shown) == len(status.answers):
        return title
    since = datetime.fromtimestamp(status.answers_since_s, now.tzinfo)
    words = f"{since:%H:%M}" if since.date() == now.date() else relative_time(since, now)
    counts = f"The service counts since {words}; " if status.answers_since_s else ""
    return Content.assemble(title, (f"  {counts}older ones are from your chats", "$text-muted not bold"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


class Chart(Widget):
    """Values over time, the newest at the right, with a title that says the newest one."""

    def __init__(self, title: str, **how: Any) -> None:
        super().__init__(**how)
        self._title = title
        self._values: tuple[float, ...] = ()
        self._newest = ""
        self._most = ""

    def show(self, values: Sequence[float], newest: str, most: str) -> None:
        """Show `values`, oldest first; `newest` and the largest, `most`, in words."""
        shown = (tuple(values), newest, most)
        if shown != (self._values, self._newest, self._most):
            self._values, self._newest, self._most = shown
            self.refresh()

    def render(self) -> RenderResult:
        size = self.content_size
        head = Content.assemble((self._title, "bold $text-accent"), (f"  {self._newest}", "$bright"))
        lines = chart_lines(self._values, self._most, size.width, size.height - 1)
        return Content("\n").join([head, colored(lines, {}, "$text-accent")])


def chart_lines(values: Sequence[float], most: str, n_columns: int, n_rows: int) -> list[str]:
    """Return a curve of `values` from 0 to their largest, which is `most` in words; blank lines without values."""
    across = n_columns - _AXIS_COLUMNS - 1
    if not values or across < _LEAST_CHART_COLUMNS or n_rows < _LEAST_CHART_ROWS:
        return [""] * max(n_rows, 0)
    canvas = BrailleCanvas(across, n_rows)
    top = max(values) or 1.0
    steps = max(len(values) - 1, 1)
    canvas.polyline([(index / steps, value / top) for index, value in enumerate(values)])
    labels = {0: most, n_rows - 1: "0"}
    return [f"{labels.get(row, ''):>{_AXIS_COLUMNS}}│{text}" for row, text in enumerate(canvas.rows())]


def history_lines(runs: Sequence[MeasuredRun], n_columns: int) -> list[str]:
    rates = [run.tps for run in runs if run.kind == "decode"]
    if not rates:
        return []
    times = [run.at_s for run in runs if run.kind == "decode" and run.at_s]
    since = f" since {datetime.fromtimestamp(min(times)):%Y-%m-%d}" if times else ""
    text = f"{counted(len(rates), 'answer')}{since}: median {format_speed(median(rates))} tok/s, "
    text += f"last {format_speed(rates[-1])} "
    return [text + sparkline(rates, max(n_columns - len(text), 0))]


def bench_runs(jobs: Sequence[Job]) -> tuple[Job, ...]:
    return tuple(sorted((job for job in jobs if job.kind == "bench"), key=lambda job: -job.created_s))


def run_line(job: Job) -> str:
    begun = f"{datetime.fromtimestamp(job.created_s):%Y-%m-%d %H:%M}  {job.arguments.get('model', '')}"
    if job.state == "failed" and job.error is not None:
        return f"{begun}: failed. {job.error.cause}"
    if job.state != "done" or job.result is None:
        return f"{begun}: {job.state}"
    tps_of: dict[str, float] = {}  # the first case of each work
    for (name, _, _), tps in _figures(job.result).items():
        tps_of.setdefault(name, tps)
    decode = f"answers {format_figure(tps_of['decode'], 4)} tok/s" if "decode" in tps_of else ""
    prefill = f"prompts {format_figure(tps_of['prefill'], 4)} tok/s" if "prefill" in tps_of else ""
    shares = (item["share"] for item in job.result.get("rooflines", ()))
    roofline = next((f"{share:.0%} of the memory bandwidth limit" for share in shares), "")
    return f"{begun}: {', '.join(filter(None, (decode, prefill, roofline))) or 'no results'}"


def compared_lines(before: Job, after: Job) -> list[str]:
    old, new = _figures(before.result or {}), _figures(after.result or {})
    both = [key for key in old if key in new]
    if not both:
        return ["These runs have no measurements in common."]
    width = max(len(f"{name} {case}") for name, case, _ in both)
    lines = []
    for name, case, unit in both:
        then, now = old[name, case, unit], new[name, case, unit]
        gain = now / then if unit == _RATE else then / now
        figures = f"{format_figure(then, 4):>8} → {format_figure(now, 4):>8}"
        lines.append(f"{f'{name} {case}':<{width}}  {figures} {unit:<6} {gain:.2f} ×")
    return lines


def _figures(result: Mapping[str, Any]) -> _Figures:
    """Return the medians of the first server, by work, case and unit."""
    for server in result.get("results", ())[:1]:
        return {(item["work"], item["case"], item["unit"]): item["median"] for item in server["measurements"]}
    return {}


def expected_duration(runs: Sequence[Job], model: str) -> str:
    """Return how long a benchmark takes, by the last one of the model."""
    for run in runs:
        if run.state == "done" and run.arguments.get("model") == model and run.started_s and run.ended_s:
            return f"about {duration(run.ended_s - run.started_s)}"
    return _USUAL_S


def _most(values: Sequence[float], words: Callable[[float], str]) -> str:
    return words(max(values)) if values else ""


class MetricsScreen(FeatureScreen):
    """Polls the service while it is visible."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "metrics.tcss"]
    FEATURE = "metrics"
    TABLE = METRICS_COMMANDS
    BINDINGS = METRICS_COMMANDS.bindings()
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - Textual declares no class variable

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._log = MetricsHistory()
        self._timer: Timer | None = None
        self._n_polls = 0
        self._is_polling = False
        self._runs: tuple[Job, ...] = ()
        self._marked: Job | None = None
        self._has_details = False
        self._stored: Sequence[AnswerRecord] = ()  # of chats, which outlive the service

    def body(self) -> Iterable[Widget]:
        with VerticalScroll(can_focus=False):
            yield Static("Loading…", id="models", markup=False)
            with Horizontal(id="charts"):
                yield Chart("Tokens a second", id="speed")
                yield Chart("First word", id="first-word")
                yield Chart("Memory", id="memory")
            yield Static("Last answers", classes="part-title", id="answers-title")
            yield Static(id="answers", markup=False)
            yield Static(id="history", markup=False)
            with Vertical(id="benchmarks"):
                yield Static("Benchmarks", classes="part-title")
                yield OptionList(id="runs", markup=False)
                yield Static(id="compared", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(_POLL_S, self._poll, pause=True)
        self.query_one("#charts").display = False
        self.query_one("#runs", OptionList).focus()

    def on_screen_resume(self) -> None:
        self._n_polls = 0
        self._read_stored()
        self._poll()
        self._show_history()
        if self._timer is not None:
            self._timer.resume()

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.pause()

    # Command handlers

    @work(group="measure", exclusive=True)
    async def measure(self) -> None:
        """Ask, since it keeps the machine busy, and start the benchmark as a job."""
        model = self.app_context.connection.state.model
        explanation = (
            f"Measures how fast {model} reads, writes and goes on in a chat, in a service of its own. It takes "
            f"{expected_duration(self._runs, model)} and keeps the processor busy: other work spoils the figures. "
            "F8 shows how far it is and cancels it."
        )
        chosen = await self.app.push_screen_wait(ChoiceDialog("Benchmark", explanation, _CHOICES))
        if chosen != _RUN:
            return
        with self.inform_on_error():
            service = await self.service()
            await service.start_job("bench", {"model": model, "only": _QUICK_WORK})
            self.inform(f"{model} is being benchmarked: keep the machine idle. F8 shows the log.")
            self._show_runs(bench_runs(await service.jobs()))

    def toggle_details(self) -> None:
        self._has_details = not self._has_details
        self._poll()

    def clear_comparison(self) -> None:
        self._marked = None
        self._text("compared").update("")

    @on(OptionList.OptionSelected, "#runs")
    def _chose_run(self, event: OptionList.OptionSelected) -> None:
        run = self._runs[event.option_index]
        if run.state != "done":
            self.inform("Only finished runs can be compared.")
        elif self._marked is None or self._marked.id == run.id:
            self._marked = run
            self._text("compared").update(printable(f"Selected {run_line(run)}\nEnter on another run compares both."))
        else:
            before, after = sorted((self._marked, run), key=lambda job: job.created_s)
            lines = [run_line(before), run_line(after), *compared_lines(before, after)]
            self._text("compared").update(printable("\n".join(lines)))
        self.call_after_refresh(self.query_one(VerticalScroll).scroll_end, animate=False)

    # Polling

    @work(group="look")
    async def _poll(self) -> None:
        if self._is_polling:  # a busy engine takes up to a second
            return
        self._is_polling = True
        try:
            service = await self.service()
            status = await service.status()
            self._log.take(status, self.app_context.clock())
            self._show(status)
            if self._n_polls % _POLLS_PER_RUN_REFRESH == 0:
                self._show_runs(bench_runs(await service.jobs()))
            self._n_polls += 1
        except UserError as error:
            self._text("models").update(printable(str(error)))
        finally:
            self._is_polling = False

    @work(group="stored", exclusive=True)
    async def _read_stored(self) -> None:
        with self.inform_on_error(StorageError):
            self._stored = await self.app_context.repository.recent_answers()

    @work(group="history", exclusive=True)
    async def _show_history(self) -> None:
        history = self._text("history")
        try:
            model = self.app_context.connection.state.model
            report = await (await self.service()).plan(PlanRequest(model=model))
        except UserError as error:
            history.update(printable(str(error)))
            return
        lines = history_lines(report.measured, history.content_size.width)
        history.update(printable(f"{report.model} on this machine: {lines[0]}") if lines else "")

    # Display

    def _show(self, status: ServiceStatus) -> None:
        room = max(self.size.width - _MARGIN_COLUMNS, 1)
        blocks = [summary_line(model) for model in status.models]
        if self._has_details:
            lines = ["\n".join(model_lines(model, self._log.samples(model.id), room)) for model in status.models]
            blocks += [Content(), Content.styled(printable("\n\n".join(lines)), "$text-muted")]
        self._text("models").update(Content("\n").join(blocks))
        answers = with_stored(status, self._stored)
        speeds = [answer.decode_tps for answer in reversed(answers) if answer.decode_tps is not None]
        waits = [answer.first_token_s for answer in reversed(answers)]
        samples = [self._log.samples(model.id) for model in status.models]
        n_samples = max(map(len, samples), default=0)
        sizes = [sum(each[at].n_bytes for each in samples if -at <= len(each)) for at in range(-n_samples, 0)]
        now_bytes = sum(model.n_bytes for model in status.models)
        self.query_one("#charts").display = bool(answers or n_samples)
        self._chart("speed").show(speeds, format_speed(speeds[-1]) if speeds else "", _most(speeds, format_speed))
        self._chart("first-word").show(waits, _seconds(waits[-1]) if waits else "", _most(waits, _seconds))
        self._chart("memory").show(sizes, format_memory(now_bytes), _most(sizes, format_memory))
        if answers:
            now = datetime.now(UTC).astimezone()
            n_most = min(max(self.size.height - _OTHER_ROWS, _LEAST_ANSWERS), _N_ANSWERS_SHOWN)
            self._text("answers").update(Content("\n").join(answer_rows(answers, now, room, n_most)))
            self._text("answers-title").update(answers_title(status, answers, now))
        else:
            self._text("answers").update(Content.styled(_NOT_MEASURED, "$text-muted"))

    def _chart(self, name: str) -> Chart:
        return self.query_one(f"#{name}", Chart)

    def _text(self, name: str) -> Static:
        return self.query_one(f"#{name}", Static)

    def _show_runs(self, runs: tuple[Job, ...]) -> None:
        if runs == self._runs and self._runs:
            return
        self._runs = runs
        options = self.query_one("#runs", OptionList)
        highlighted = options.highlighted
        options.clear_options()
        options.add_options(Option(printable(run_line(run))) for run in runs)
        if not runs:
            options.add_option(
                Option("No benchmarks yet. B measures the model of the chat, after asking.", disabled=True)
            )
        elif highlighted is not None:
            options.highlighted = min(highlighted, len(runs) - 1)
