"""The jobs screen (progress, log and actions of each job) and the log screen, which follows the service's log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import on, work
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import DataTable, Input, Log, Static

from app.common.terminal import printable
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.jobs.monitor import cells, detail
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.job import Job


# Columns after the title, and their cells; where all do not fit, the first of them are shown.
_WIDTHS = {"State": 11, "Progress": 16, "Speed": 10, "Left": 10}
_TITLE_CELLS = 16
_MARGIN = 2
_DRAWN_EVERY_S = 0.2  # five times a second reads as motion
_READ_EVERY_S = 1.0  # a log
_NONE = "No jobs. Downloads, conversions and benchmarks appear here."
_REPEATABLE = ("tune", "eval", "bench")  # another run has other figures
_MAX_BYTES = 256 * 1024  # earlier lines are in the file


JOBS_COMMANDS = CommandTable(
    list_command("jobs-cancel", "Cancel", "c", "Cancel the job; a download keeps its partial data", "cancel_job"),
    list_command("jobs-retry", "Retry", "r", "Run it again, or resume where it stopped", "retry_job"),
    list_command("jobs-forget", "Forget", "delete,x", "Remove a finished job and its log", "forget_job"),
)  # fmt: skip


class JobsScreen(FeatureScreen):
    """The table of jobs, details and log of the selected one."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "jobs.tcss"]
    FEATURE = "jobs"
    TABLE = JOBS_COMMANDS
    BINDINGS = JOBS_COMMANDS.bindings()

    _is_stale = True

    def body(self) -> Iterable[Widget]:
        yield JobTable()
        yield Static("", markup=False, id="detail")
        yield LogView()

    def on_mount(self) -> None:
        self.table.focus()
        self.app_context.jobs.watch(self._note_change)
        self.set_interval(_DRAWN_EVERY_S, self._draw)
        self.set_interval(_READ_EVERY_S, self._follow_log)
        self._draw()

    def on_screen_resume(self) -> None:
        self._draw()

    @property
    def table(self) -> JobTable:
        return self.query_one(JobTable)

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
            self._draw_detail()

    def _draw_detail(self) -> None:
        board, job = self.app_context.jobs, self.job
        text = printable(str(board.trouble)) if board.trouble else detail(job, self.table.n_hidden) if job else _NONE
        self.query_one("#detail", Static).update(text)

    @on(DataTable.RowHighlighted)
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
        self.query_one(LogView).show(text)

    # Command handlers

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


class JobTable(DataTable[Text]):
    """The jobs, newest first, keyed by id; redraws only changed cells."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True)
        self._jobs: dict[str, Job] = {}
        self._shown: tuple[str, ...] = ("Job", *_WIDTHS)

    @property
    def n_hidden(self) -> int:
        return 1 + len(_WIDTHS) - len(self._shown)

    @property
    def job_id(self) -> str | None:
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def on_resize(self, _: Resize) -> None:
        self._draw_all()  # the columns that fit

    def show(self, jobs: Iterable[Job]) -> None:
        """Show these jobs, given oldest first."""
        before, self._jobs = self._jobs, {job.id: job for job in reversed(list(jobs))}
        if list(before) != list(self._jobs):
            self._draw_all()
            return
        for job_id, job in self._jobs.items():
            if job is not before[job_id]:
                for name, now, then in zip(self._shown, cells(job), cells(before[job_id]), strict=False):
                    if now != then:
                        self.update_cell(job_id, name, _cell(now))

    def _draw_all(self) -> None:
        job_id = self.job_id
        self.clear(columns=True)
        others, left = dict(_WIDTHS), self.size.width - _MARGIN
        while others and left - sum(width + _MARGIN for width in others.values()) < _TITLE_CELLS:
            others.popitem()
        widths = {"Job": max(1, left - sum(width + _MARGIN for width in others.values())), **others}
        self._shown = tuple(widths)
        for name, width in widths.items():
            self.add_column(Text(name), key=name, width=width)
        for job in self._jobs.values():
            self.add_row(*map(_cell, cells(job)[: len(widths)]), key=job.id)
        if job_id in self._jobs:
            self.move_cursor(row=self.get_row_index(job_id))


class LogScreen(FeatureScreen):
    """Reads the file in a thread, once a second while visible."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "log.tcss"]
    FEATURE = "log"
    TABLE: ClassVar[CommandTable] = CommandTable()

    def body(self) -> Iterable[Widget]:
        yield Input(placeholder="Filter lines", compact=True)
        yield LogView()

    def on_mount(self) -> None:
        self.set_interval(_READ_EVERY_S, self._follow)

    def on_screen_resume(self) -> None:
        self._read()

    @on(Input.Changed)
    def _narrowed(self) -> None:
        self._read()

    def _follow(self) -> None:
        if self.is_current:
            self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        path = self.app_context.settings.cache_dir / "service.log"
        wanted = self.query_one(Input).value.casefold()
        text = await asyncio.to_thread(read_end, path)
        lines = [line for line in text.splitlines(keepends=True) if wanted in line.casefold()]
        self.query_one(LogView).show("".join(lines) or f"No lines yet in {path}.\n")


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


def _cell(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def read_end(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """Return the last whole lines of a file, at most `max_bytes`; the reason if it cannot be read."""
    try:
        with path.open("rb") as file:
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
