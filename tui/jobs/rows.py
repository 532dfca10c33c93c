"""Jobs as rows: those that run, then the finished ones by day, of which older days are folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from app.common.terminal import format_bytes, printable, printable_line
from app.library.local.model_files import id_of
from tui.design.words import day_heading, duration, relative_time

if TYPE_CHECKING:
    from app.protocol.job import Job


# By state: sign, colour and word.
STATES = {
    "queued": ("◌", "$text-muted", "waiting"),
    "running": ("◐", "$text-accent", "running"),
    "done": ("●", "$text-success", "done"),
    "failed": ("✕", "$text-error", "failed"),
    "cancelled": ("○", "$text-muted", "cancelled"),
    "interrupted": ("▲", "$text-warning", "interrupted"),
}
NOW = "Now"
_UNFOLDED = (NOW, "Today")
_BAR_CELLS = 10
_COLUMN_CELLS = (17, 11, 11)  # progress or state, speed or duration, what is left or when
_LEAST_TITLE_CELLS = 16
_COMMAND = re.compile(r"\[\d{4}-\d\d-\d\d [\d:]+\] localllm ")  # the line that begins a log


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs under one heading, newest first; those of a folded one are not shown."""

    heading: str
    jobs: tuple[Job, ...]
    is_folded: bool

    @property
    def summary(self) -> str:
        """How many of each state: "3 done, 1 failed"."""
        states = [job.state for job in self.jobs]
        return ", ".join(f"{states.count(state)} {word}" for state, (_, _, word) in STATES.items() if state in states)


def grouped(jobs: Iterable[Job], now: datetime, toggled: frozenset[str] = frozenset()) -> Iterator[JobGroup]:
    """Yield the jobs, given oldest first, by what goes on and by the day they ended. Days before today are folded;
    `toggled` are the headings of which it is the other way round."""
    by_heading: dict[str, list[Job]] = {}
    newest_first = list(reversed(list(jobs)))
    for job in (*(job for job in newest_first if not job.has_ended), *(job for job in newest_first if job.has_ended)):
        ended = datetime.fromtimestamp(job.ended_s or job.created_s, now.tzinfo)
        by_heading.setdefault(day_heading(ended, now) if job.has_ended else NOW, []).append(job)
    for heading, found in by_heading.items():
        yield JobGroup(heading, tuple(found), (heading in _UNFOLDED) == (heading in toggled))


def heading_line(group: JobGroup) -> Content:
    sign = "▸" if group.is_folded else "▾"
    return Content.assemble(
        (f"{sign} ", "$faint"), (group.heading, "bold $text-accent"), (f"  {group.summary}", "$text-muted")
    )


def cells(job: Job, now: datetime) -> tuple[str, str, str, str]:
    """Return what the job does; progress, speed and time left of a running one; state, duration and moment of the end
    of a finished one."""
    word = STATES.get(job.state, ("", "", str(job.state)))[2]
    what = printable_line(what_of(job))
    if job.state == "running":
        speed = f"{format_bytes(int(job.bytes_per_s))}/s" if job.bytes_per_s else ""
        return what, _progress(job), speed, "" if job.remaining_s is None else _left(job.remaining_s)
    if not job.has_ended:
        return what, word, "", ""
    took = "" if job.started_s is None or job.ended_s is None else duration(max(job.ended_s - job.started_s, 0.0))
    ended = relative_time(datetime.fromtimestamp(job.ended_s or job.created_s, now.tzinfo), now)
    return what, word, took and f"took {took}", ended


def job_line(job: Job, now: datetime, n_cells: int) -> Content:
    """Return the row of a job: its sign, what it does, and as many of its figures as there is room for."""
    sign, color, _ = STATES.get(job.state, ("·", "$text-muted", ""))
    what, *figures = cells(job, now)
    shown = list(zip(figures, _COLUMN_CELLS, strict=True))[: n_shown(n_cells)]
    n_what = max(n_cells - 4 - sum(width for _, width in shown), 1)
    title = what if cell_len(what) < n_what else f"{set_cell_size(what, max(n_what - 2, 1))}…"
    parts = [(f"{text:>{width}}", color if at == 0 else "$text-muted") for at, (text, width) in enumerate(shown)]
    color_of_title = "$bright" if not job.has_ended else "$foreground"
    return Content.assemble((f"  {sign} ", color), (set_cell_size(title, n_what), color_of_title), *parts)


def n_shown(n_cells: int) -> int:
    """Return how many columns besides the title a row of `n_cells` has."""
    n = len(_COLUMN_CELLS)
    while n and n_cells - 4 - sum(_COLUMN_CELLS[:n]) < _LEAST_TITLE_CELLS:
        n -= 1
    return n


def detail(job: Job, now: datetime, n_cells: int = 1000) -> str:
    """Return the title, the current step, the bytes, and the error; also the figures that the row has no room for."""
    title = printable_line(job.title)
    if job.error is not None:
        return printable(f"{title} · {job.error.cause} {job.error.remedy}".strip())
    hidden = cells(job, now)[1 + n_shown(n_cells) :]
    n_bytes = "" if job.n_done_bytes is None else format_bytes(job.n_done_bytes)
    of_all = f" of {format_bytes(job.n_bytes)}" if n_bytes and job.n_bytes else ""
    parts = [title, printable_line(job.message), f"{n_bytes}{of_all}", *hidden]
    if job.state == "interrupted":
        parts.append("The service stopped first: R resumes the job.")
    return " · ".join(part for part in parts if part)


def what_of(job: Job) -> str:
    """Return what a job does in words, with names instead of paths and without the publisher."""
    source, repo = (str(job.arguments.get(name) or "") for name in ("source", "reference"))
    head, _, target = job.title.rpartition(" to ")
    if job.kind == "quantize" and head and source:
        name = PurePath(source).name
        return f"Quantize {id_of(name) if name.endswith('.gguf') else name} → {target}"
    if job.kind == "pull":
        fetched = job.title.replace(repo, PurePath(repo).name, 1) if repo else job.title
        return re.sub(r"^(Fetch|pull)\b", "Download", fetched)
    return job.title


def without_commands(log: str) -> str:
    """Return a log without the command lines that it begins with."""
    return "".join(line for line in log.splitlines(keepends=True) if not _COMMAND.match(line))


def _progress(job: Job) -> str:
    if job.fraction is None:
        return "running…"
    share = min(max(job.fraction, 0.0), 1.0)
    n_full = int(share * _BAR_CELLS)
    return f"{'▰' * n_full}{'▱' * (_BAR_CELLS - n_full)} {int(share * 100):>3} %"  # 100 % only when complete


def _left(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
