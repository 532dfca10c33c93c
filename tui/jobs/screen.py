"""The jobs screen (progress, log and actions of each job) and the log screen, which follows the service's log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import on, work
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Input, Log, OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError
from quantizer.system.files import open_regular
from tui.commands import CommandTable, list_command
from tui.design.header import ScreenHeader
from tui.design.search_box import SearchBox
from tui.jobs.rows import detail, grouped, heading_line, job_line, without_commands
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.job import Job


_DRAWN_EVERY_S = 0.2  # five times a second reads as motion
_READ_EVERY_S = 1.0  # a log
_NONE = """No jobs.

What takes longer than an answer runs here, one beside the other, and goes on while you chat:
  F6  downloads, quantizes and imports models
  F9  measures how fast a model is
  localllm tune, eval and bench do so from a shell"""
_HEADING = "day "
_NO_MATCH = "No line has that text. Esc clears the filter.\n"
_NO_LINES = (
    "No lines yet in {path}.\nThe service writes here what it loads, what fails, and with access_log each request.\n"
)
_REPEATABLE = ("tune", "eval", "bench")  # another run has other figures
_MAX_BYTES = 256 * 1024  # earlier lines are in the file


JOBS_COMMANDS = CommandTable(
    list_command("jobs-cancel", "Cancel", "c", "Cancel the job; a download keeps its partial data", "cancel_job"),
    list_command("jobs-retry", "Retry", "r", "Run it again, or resume where it stopped", "retry_job"),
    list_command("jobs-forget", "Forget", "delete,x", "Remove a finished job and its log", "forget_job"),
    list_command("jobs-details", "Command", "d", "Show the command line of the job", "toggle_command"),
)  # fmt: skip


LOG_COMMANDS = CommandTable(
    list_command("log-search", "Filter", "slash", "Show only lines with a text", "search"),
)


class JobsScreen(FeatureScreen):
    """The list of jobs, details and log of the selected one."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "jobs.tcss"]
    FEATURE = "jobs"
    TABLE = JOBS_COMMANDS
    BINDINGS = JOBS_COMMANDS.bindings()

    _is_stale = True
    _has_command = False
    _log_text = ""

    def body(self) -> Iterable[Widget]:
        yield JobList(self._now)
        yield Static("", markup=False, id="detail")
        yield LogView()

    def on_mount(self) -> None:
        self.table.focus()
        self.app_context.jobs.watch(self._note_change)
        self.set_interval(_DRAWN_EVERY_S, self._draw)
        self.set_interval(_READ_EVERY_S, self._follow_log)
        self._draw()

    def on_screen_resume(self) -> None:
        self._is_stale = True  # times go by
        self._draw()

    def show_facts(self, header: ScreenHeader) -> None:
        jobs = self.app_context.jobs
        header.show_facts(f"{jobs.n_busy} running" if jobs.n_busy else "")

    @staticmethod
    def _now() -> datetime:
        return datetime.now(UTC).astimezone()

    @property
    def table(self) -> JobList:
        return self.query_one(JobList)

    @property
    def job(self) -> Job | None:
        return self.app_context.jobs.jobs.get(self.table.job_id or "")

    # Display

    def _note_change(self) -> None:
        self._is_stale = True

    def _draw(self) -> None:
        if self._is_stale and self.is_current:
            self._is_stale = False
            self.table.show(self.app_context.jobs.jobs.values())
            self.show_facts(self.query_one(ScreenHeader))
            self._draw_detail()

    def _draw_detail(self) -> None:
        board, job = self.app_context.jobs, self.job
        is_empty = not board.jobs
        if board.trouble:
            text = printable(str(board.trouble))
        else:
            text = detail(job, self._now(), self.table.n_cells) if job else _NONE if is_empty else ""
        self.query_one("#detail", Static).update(text)
        self.set_class(is_empty, "-empty")
        if not is_empty and self.focused is None:
            self.table.focus()

    @on(OptionList.OptionHighlighted)
    def _chosen(self) -> None:
        self._draw_detail()
        self._read_log()

    def _follow_log(self) -> None:
        if self.is_current and self.job is not None and self.job.state == "running":
            self._read_log()

    @work(group="log", exclusive=True)
    async def _read_log(self) -> None:
        job = self.job
        text = ""
        if job is not None:
            try:
                text = await (await self.service()).job_log(job.id)
            except UserError as error:
                text = f"{error}\n"
        self._log_text = text
        self._show_log()

    def _show_log(self) -> None:
        self.query_one(LogView).show(self._log_text if self._has_command else without_commands(self._log_text))

    # Command handlers

    def toggle_command(self) -> None:
        self._has_command = not self._has_command
        self._show_log()

    async def cancel_job(self) -> None:
        await self._do(lambda client, job: client.cancel_job(job.id))

    async def retry_job(self) -> None:
        """Run a job again. One with a result stays as it is: a measurement is started anew, and a file is there."""
        job = self.job
        if job is not None and job.state == "done" and job.kind not in _REPEATABLE:
            self.inform(f"{job.title} is done. F6 lists the model.")
        elif job is not None and job.state == "done":
            await self._do(lambda client, job: client.start_job(job.kind, job.arguments))
        else:
            await self._do(lambda client, job: client.retry_job(job.id))

    async def forget_job(self) -> None:
        await self._do(lambda client, job: client.forget_job(job.id))

    async def _do(self, action: Callable[[ServiceClient, Job], Awaitable[object]]) -> None:
        job = self.job
        if job is None:
            self.inform("No job is selected.")
            return
        with self.warn_on_error():
            await action(await self.service(), job)
        self._read_log()


class JobList(OptionList):
    """The jobs by day, newest first, keyed by id; redraws only changed rows. Enter on a heading folds it."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(markup=False, compact=True)
        self._now = now
        self._jobs: tuple[Job, ...] = ()
        self._toggled: frozenset[str] = frozenset()
        self._drawn: dict[str, Content] = {}

    @property
    def n_cells(self) -> int:
        return self.scrollable_content_region.width

    @property
    def job_id(self) -> str | None:
        option = self.highlighted_option
        return None if option is None or (option.id or "").startswith(_HEADING) else option.id

    def on_resize(self, _: Resize) -> None:
        self._drawn = {}
        self._draw()

    def show(self, jobs: Iterable[Job]) -> None:
        """Show these jobs, given oldest first."""
        self._jobs = tuple(jobs)
        self._draw()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if (event.option_id or "").startswith(_HEADING):
            event.stop()
            self._toggled ^= {str(event.option_id).removeprefix(_HEADING)}
            self._draw()

    def _draw(self) -> None:
        now, rows = self._now(), dict[str, Content]()
        for group in grouped(self._jobs, now, self._toggled):
            rows[f"{_HEADING}{group.heading}"] = heading_line(group)
            if not group.is_folded:
                rows |= {job.id: job_line(job, now, self.n_cells) for job in group.jobs}
        if list(rows) == list(self._drawn):
            for row_id, line in rows.items():
                if line != self._drawn[row_id]:
                    self.replace_option_prompt(row_id, line)
        else:
            kept = None if self.highlighted_option is None else self.highlighted_option.id
            self.clear_options()
            self.add_options(Option(line, row_id) for row_id, line in rows.items())
            if rows:
                first = next((at for at, row_id in enumerate(rows) if not row_id.startswith(_HEADING)), 0)
                self.highlighted = list(rows).index(kept) if kept in rows else first
        self._drawn = rows


class LogScreen(FeatureScreen):
    """Reads the file in a thread, once a second while visible."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "log.tcss"]
    FEATURE = "log"
    TABLE = LOG_COMMANDS
    KEYS = SearchBox.KEYS
    BINDINGS = LOG_COMMANDS.bindings()

    def body(self) -> Iterable[Widget]:
        yield SearchBox("filter lines")
        yield LogView()

    def on_mount(self) -> None:
        self.set_interval(_READ_EVERY_S, self._follow)

    def on_screen_resume(self) -> None:
        self._read()

    @on(Input.Changed)
    def _narrowed(self) -> None:
        self._read()

    @on(SearchBox.Left)
    def _left_search(self) -> None:
        self.query_one(LogView).focus()

    def search(self) -> None:
        self.query_one(SearchBox).focus()

    def show_facts(self, header: ScreenHeader) -> None:
        header.show_facts(printable_line(str(self.app_context.settings.cache_dir / "service.log")))

    def _follow(self) -> None:
        if self.is_current:
            self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        path = self.app_context.settings.cache_dir / "service.log"
        wanted = self.query_one(Input).value.casefold()
        text = await asyncio.to_thread(read_end, path)
        lines = [line for line in text.splitlines(keepends=True) if wanted in line.casefold()]
        self.query_one(LogView).show("".join(lines) or (_NO_MATCH if text else _NO_LINES.format(path=path)))


class LogView(Log):
    """A wrapped log. Appends to a growing text, replaces any other; follows the end until the user scrolls."""

    def __init__(self) -> None:
        super().__init__(highlight=False, auto_scroll=False)  # the anchor does it after the layout
        self._text = ""
        self._wrap_cells = 0  # the width the lines are wrapped to

    def on_mount(self) -> None:
        self.anchor()

    def show(self, text: str) -> None:
        """Show `text`, which need not be printable."""
        if text.startswith(self._text) and self._text.endswith("\n"):
            added = text[len(self._text) :]
        else:
            self.clear()
            self.anchor()
            added = text
        self._text = text
        self._append(added)

    def on_resize(self, _: Resize) -> None:
        if self.scrollable_content_region.width != self._wrap_cells:
            self._wrap_cells = self.scrollable_content_region.width
            self.clear()
            self._append(self._text)
            self.anchor()

    def _append(self, text: str) -> None:
        if text and self._wrap_cells:  # before the layout there is no width
            lines = printable(text.expandtabs(4)).split("\n")[: -1 if text.endswith("\n") else None]
            self.write_lines([row for line in lines for row in wrapped(line, self._wrap_cells)])


def wrapped(line: str, n_cells: int) -> list[str]:
    """Return a line as rows that end between words; a longer word is cut."""
    return [line] if cell_len(line) <= n_cells else [row.plain.rstrip() for row in Content(line).wrap(n_cells)]


def read_end(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """Return the last whole lines of a file, at most `max_bytes`; the reason if it cannot be read."""
    try:
        with open_regular(path) as file:
            n_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, n_bytes - max_bytes))
            data = file.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}.\n"
    if n_bytes > max_bytes:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
