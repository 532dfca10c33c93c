"""The metrics screen: what each model does now, past speeds, and benchmark runs compared.

Rates come from two snapshots of a model's counters, taken twice a second while the screen is visible; figures of runs
from the JSON that `localllm bench` prints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import ge
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from textual import on, work
from textual.containers import VerticalScroll
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable
from app.protocol.plan import PlanRequest
from offload.format import format_memory, format_speed
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.context import AppContext
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.plan import MeasuredRun
    from app.protocol.status import EngineCounters, ModelStatus, ServiceStatus


_N_KEPT = 240  # two minutes at two snapshots a second
_BLOCKS = "▁▂▃▄▅▆▇█"
_NAME_COLUMNS, _VALUE_COLUMNS = 13, 22
_Figures: TypeAlias = Mapping[tuple[str, str, str], float]
_RATE = "tok/s"  # for all other units less is better

_POLL_S = 0.5
_POLLS_PER_RUN_REFRESH = 4  # fetch the runs every so many polls
_QUICK_WORK = "decode,prefill,turns"
_MARGIN_COLUMNS = 3  # padding and scrollbar
METRICS_COMMANDS = CommandTable(
    list_command("metrics-measure", "Benchmark", "b",
                 "Benchmark the model in a separate service; takes a minute or more", "measure"),
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
    cells = f"{occupancy.n_cells_used:,} of {occupancy.n_cells:,}"
    speeds = f"{format_speed(tps[-1]) if tps else '–'}, answers {format_speed(counters.decode_tokens_per_s)}"
    most_bytes = max((sample.n_bytes for sample in samples), default=0)
    rows: tuple[tuple[str, str, Sequence[float | None], float | None], ...] = (
        ("tok/s", speeds, tps, None),
        ("first token", latency, [sample.first_token_s for sample in samples], None),
        ("cache hits", cached, [sample.cached_share for sample in samples], 1.0),
        ("memory", format_memory(model.n_bytes), [sample.n_bytes for sample in samples], most_bytes),
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


def history_lines(runs: Sequence[MeasuredRun], n_columns: int) -> list[str]:
    rates = [run.tps for run in runs if run.kind == "decode"]
    if not rates:
        return ["No answers measured yet."]
    times = [run.at_s for run in runs if run.kind == "decode" and run.at_s]
    since = f" since {datetime.fromtimestamp(min(times)):%Y-%m-%d}" if times else ""
    answers = "1 answer" if len(rates) == 1 else f"{len(rates)} answers"
    text = f"{answers}{since}: median {format_speed(median(rates))} tok/s, last {format_speed(rates[-1])} "
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
    decode = f"answers {tps_of['decode']:.4g} tok/s" if "decode" in tps_of else ""
    prefill = f"prompts {tps_of['prefill']:.4g} tok/s" if "prefill" in tps_of else ""
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
        lines.append(f"{f'{name} {case}':<{width}}  {then:>8.4g} → {now:>8.4g} {unit:<6} {gain:.2f} ×")
    return lines


def _figures(result: Mapping[str, Any]) -> _Figures:
    """Return the medians of the first server, by work, case and unit."""
    for server in result.get("results", ())[:1]:
        return {(item["work"], item["case"], item["unit"]): item["median"] for item in server["measurements"]}
    return {}


class MetricsScreen(FeatureScreen):
    """Polls the service while it is visible."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "metrics.tcss"]
    FEATURE = "metrics"
    TABLE = METRICS_COMMANDS
    BINDINGS = METRICS_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._log = MetricsHistory()
        self._timer: Timer | None = None
        self._n_polls = 0
        self._is_polling = False
        self._runs: tuple[Job, ...] = ()
        self._marked: Job | None = None

    def body(self) -> Iterable[Widget]:
        with VerticalScroll(can_focus=False):
            yield Static("Loading…", id="models", markup=False)
            yield Static(id="history", markup=False)
            yield OptionList(id="runs", markup=False)
            yield Static(id="compared", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(_POLL_S, self._poll, pause=True)
        self._text("history").border_title = "Answers so far"
        runs = self.query_one("#runs", OptionList)
        runs.border_title = "Benchmarks: B runs one, Enter selects two runs to compare"
        runs.focus()

    def on_screen_resume(self) -> None:
        self._n_polls = 0
        self._poll()
        self._show_history()
        if self._timer is not None:
            self._timer.resume()

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.pause()

    # Command handlers

    @work(group="measure")
    async def measure(self) -> None:
        model = self.app_context.connection.state.model
        with self.inform_on_error():
            service = await self.service()
            await service.start_job("bench", {"model": model, "only": _QUICK_WORK})
            self.inform(f"{model} is being benchmarked: keep the machine idle for a minute. F8 shows the log.")
            self._show_runs(bench_runs(await service.jobs()))

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
            room = self.size.width - _MARGIN_COLUMNS
            blocks = ["\n".join(model_lines(model, self._log.samples(model.id), room)) for model in status.models]
            self._text("models").update(printable("\n\n".join(blocks)))
            if self._n_polls % _POLLS_PER_RUN_REFRESH == 0:
                self._show_runs(bench_runs(await service.jobs()))
            self._n_polls += 1
        except UserError as error:
            self._text("models").update(printable(str(error)))
        finally:
            self._is_polling = False

    @work(group="history", exclusive=True)
    async def _show_history(self) -> None:
        history = self._text("history")
        try:
            report = await (await self.service()).plan(PlanRequest(model=""))
        except UserError as error:
            history.update(printable(str(error)))
            return
        lines = history_lines(report.measured, history.content_size.width)
        history.update(printable("\n".join([f"{report.model}: {lines[0]}", *lines[1:]])))

    # Display

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
            options.add_option(Option("No benchmarks yet.", disabled=True))
        elif highlighted is not None:
            options.highlighted = min(highlighted, len(runs) - 1)
