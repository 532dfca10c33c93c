"""The metrics screen: current activity of each model, past speeds, and benchmark comparisons.

Owns the polling: twice a second, only while visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.containers import VerticalScroll
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable
from app.protocol.plan import PlanRequest
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.connection import localllm_service
from tui.context import AppContext
from tui.metrics.figures import MetricsHistory, bench_runs, compared_lines, history_lines, model_lines, run_line
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.status import ServiceStatus


_POLL_S = 0.5
_POLLS_PER_RUN_REFRESH = 4  # fetch the runs every so many polls
_QUICK_WORK = "decode,prefill,turns"
_MARGIN_COLUMNS = 3  # padding and scrollbar


METRICS_COMMANDS = CommandTable(
    (
        list_command(
            "metrics-measure",
            "Benchmark",
            "b",
            "Benchmark the model in a separate service; takes a minute or more",
            "measure",
        ),
        list_command(
            "metrics-clear", "Clear comparison", "c", "Clear the run selected for comparison", "clear_comparison"
        ),
    )
)


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

    def measure(self, model: str = "") -> None:
        """Benchmark a model, by default the one of the chat."""
        self._begin_measuring(model or self.app_context.connection.state.model)

    def clear_comparison(self) -> None:
        """Clear the run selected for comparison."""
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

    # Looks

    @work(group="look")
    async def _poll(self) -> None:
        if self._is_polling:  # a busy engine takes up to a second
            return
        self._is_polling = True
        try:
            service = await localllm_service(self.app_context.connection)
            status = await service.status()
            self._log.take(status, self.app_context.clock())
            self._show_models(status)
            if self._n_polls % _POLLS_PER_RUN_REFRESH == 0:
                self._show_runs(bench_runs(await service.jobs()))
            self._n_polls += 1
        except UserError as error:
            self._text("models").update(printable(str(error)))
        finally:
            self._is_polling = False

    @work(group="measure")
    async def _begin_measuring(self, model: str) -> None:
        with self.inform_on_error():
            service = await localllm_service(self.app_context.connection)
            await service.start_job("bench", {"model": model, "only": _QUICK_WORK})
            self.inform(f"{model} is being benchmarked: keep the machine idle for a minute. F8 shows the log.")
            self._show_runs(bench_runs(await service.jobs()))

    @work(group="history", exclusive=True)
    async def _show_history(self) -> None:
        history = self._text("history")
        try:
            service = await localllm_service(self.app_context.connection)
            report = await service.plan(PlanRequest(model=""))
        except UserError as error:
            history.update(printable(str(error)))
            return
        lines = history_lines(report.measured, history.content_size.width)
        history.update(printable("\n".join([f"{report.model}: {lines[0]}", *lines[1:]])))

    # Display

    def _text(self, name: str) -> Static:
        return self.query_one(f"#{name}", Static)

    def _show_models(self, status: ServiceStatus) -> None:
        room = self.size.width - _MARGIN_COLUMNS
        blocks = ["\n".join(model_lines(model, self._log.samples(model.id), room)) for model in status.models]
        self._text("models").update(printable("\n\n".join(blocks)))

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
