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

# Columns after the title, and their cells; where all do not fit, the first of them are shown.
_WIDTHS = {"State": 11, "Progress": 16, "Speed": 10, "Left": 10}
_TITLE_CELLS = 16
_MARGIN = 2


class JobTable(DataTable[Text]):
    """A row each, by the id of its job; only cells that changed are drawn anew."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True)
        self._jobs: dict[str, Job] = {}
        self._shown: tuple[str, ...] = ("Job", *_WIDTHS)

    @property
    def n_hidden(self) -> int:
        """How many of a job's cells, the last ones, have no place here."""
        return 1 + len(_WIDTHS) - len(self._shown)

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
        for name, now, then in zip(self._shown, cells(job), cells(before), strict=False):
            if now != then:
                self.update_cell(job.id, name, _cell(now))

    def _draw_all(self) -> None:
        """Draw every row; the cursor stays with its job."""
        job_id = self.job_id
        self.clear(columns=True)
        widths = _fitting(self.size.width)
        self._shown = tuple(widths)
        for name, width in widths.items():
            self.add_column(Text(name), key=name, width=width)
        for job in self._jobs.values():
            self.add_row(*map(_cell, cells(job)[: len(widths)]), key=job.id)
        if job_id in self._jobs:
            self.move_cursor(row=self.get_row_index(job_id))


def _fitting(n_cells: int) -> dict[str, int]:
    """Return the columns that fit and their cells; the title takes what the others leave."""
    shown, left = dict(_WIDTHS), n_cells - _MARGIN
    while shown and left - sum(width + _MARGIN for width in shown.values()) < _TITLE_CELLS:
        shown.popitem()
    return {"Job": max(1, left - sum(width + _MARGIN for width in shown.values())), **shown}


def _cell(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
