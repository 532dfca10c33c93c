"""The table of jobs, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text
from textual.events import Resize
from textual.widgets import DataTable

from tui.job_text import cells

if TYPE_CHECKING:
    from app.job import Job

__all__ = ["JobTable"]

# Columns after the title, and their cells; a narrow terminal shows the first of them.
_WIDTHS = {"State": 11, "Progress": 16, "Speed": 10, "Left": 10}
_TITLE_CELLS = 16
_MARGIN = 2


class JobTable(DataTable[Text]):
    """A row each, by the id of its job; only cells that changed are drawn anew."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True)
        self._jobs: dict[str, Job] = {}

    @property
    def job_id(self) -> str | None:
        """The job under the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def on_resize(self, _: Resize) -> None:
        self._draw_all()

    def show(self, jobs: Iterable[Job]) -> None:
        """Show these jobs, given oldest first."""
        before, self._jobs = self._jobs, {job.id: job for job in reversed(list(jobs))}
        if list(before) != list(self._jobs):
            self._draw_all()
            return
        for job_id, job in self._jobs.items():
            if job is not before[job_id]:
                self._draw(job, before[job_id])

    def _draw(self, job: Job, before: Job) -> None:
        for name, now, then in zip(("Job", *_WIDTHS), cells(job), cells(before), strict=True):
            if now != then:
                self.update_cell(job.id, name, _cell(now))

    def _draw_all(self) -> None:
        """Draw every row; the cursor stays with its job."""
        job_id = self.job_id
        self.clear(columns=True)
        title_cells = self.size.width - sum(width + _MARGIN for width in _WIDTHS.values()) - _MARGIN
        for name, width in {"Job": max(_TITLE_CELLS, title_cells), **_WIDTHS}.items():
            self.add_column(Text(name), key=name, width=width)
        for job in self._jobs.values():
            self.add_row(*map(_cell, cells(job)), key=job.id)
        if job_id in self._jobs:
            self.move_cursor(row=self.get_row_index(job_id))


def _cell(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
