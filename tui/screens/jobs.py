"""The jobs of the service: how far each is, what it said, and what can be done with it.

Owns what is asked of the service here. That the jobs are watched, on whatever screen, belongs to `tui.job_board`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.widget import Widget
from textual.widgets import DataTable, Static

from app.terminal import printable
from quantizer.errors import UserError
from tui.job_text import detail
from tui.jobs_commands import JOBS_COMMANDS
from tui.own_service import OwnService, own_service
from tui.screens.place_screen import PlaceScreen
from tui.widgets.job_table import JobTable
from tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from app.job import Job

__all__ = ["JobsScreen"]

_DRAWN_EVERY_S = 0.2  # five times a second reads as motion
_LOG_READ_EVERY_S = 1.0
_NONE = "No job runs, waits or has ended. Downloads, conversions and measurements appear here."


class JobsScreen(PlaceScreen):
    """Fulfils `tui.jobs_commands.JobsActions`."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss", "jobs.tcss"]
    PLACE = "jobs"
    TABLE = JOBS_COMMANDS
    BINDINGS = JOBS_COMMANDS.bindings()

    _is_stale = True

    def body(self) -> Iterable[Widget]:
        yield JobTable()
        yield Static("", markup=False, id="detail")
        yield LogView()

    def on_mount(self) -> None:
        self.table.focus()
        self.resources.jobs.watch(self._note_change)
        self.set_interval(_DRAWN_EVERY_S, self._draw)
        self.set_interval(_LOG_READ_EVERY_S, self._follow_log)
        self._draw()

    def on_screen_resume(self) -> None:
        self._draw()

    @property
    def table(self) -> JobTable:
        return self.query_one(JobTable)

    @property
    def job(self) -> Job | None:
        """The job that is chosen."""
        return self.resources.jobs.jobs.get(self.table.job_id or "")

    # What is shown

    def _note_change(self) -> None:
        self._is_stale = True

    def _draw(self) -> None:
        if self._is_stale and self.is_current:
            self._is_stale = False
            self.table.show(self.resources.jobs.jobs.values())
            self._draw_detail()

    def _draw_detail(self) -> None:
        board, job = self.resources.jobs, self.job
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
                text = await (await own_service(self.resources.connection)).job_log(job.id)
            except UserError as error:
                text = f"{error}\n"
        self.query_one(LogView).show(text)

    # What the commands do

    async def cancel_job(self) -> None:
        """End the job that is chosen, or take it from the queue."""
        await self._do(lambda client, job: client.cancel_job(job.id))

    async def retry_job(self) -> None:
        """Put a job that ended into the queue again."""
        await self._do(lambda client, job: client.retry_job(job.id))

    async def forget_job(self) -> None:
        """Remove a job that has ended."""
        await self._do(lambda client, job: client.forget_job(job.id))

    async def _do(self, action: Callable[[OwnService, Job], Awaitable[object]]) -> None:
        job = self.job
        if job is None:
            self.say("No job is chosen.")
            return
        try:
            await action(await own_service(self.resources.connection), job)
        except UserError as error:
            self.warn(str(error))
        self._read_log()
