"""The progress of verbs: a bar on stderr at a terminal, a line of JSON on stdout in a job, elsewhere (a log, a pipe) a
line on stderr once a minute, so that short work prints nothing and long work is seen to go on.

`app.service.jobs.run` reads the lines, beside what the verb itself prints with --json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from app.cli.output.format import JobEvents
from app.common.terminal import printable
from app.engine.model_task import TaskProgress
from app.library.download import events as download
from app.library.download.events import Speedometer
from quantizer.write.events import Event, JobPlanned, TensorWritten

_EVERY_S = 0.1
_LOG_EVERY_S = 60.0


class _LogLines:
    """What takes the events of a bar where nobody sees one: a line on stderr for each minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._written_s = now()

    def emit(self, **line: Any) -> None:
        if line["event"] == "note":
            click.echo(printable(line["text"]), err=True)
        elif self._now() - self._written_s >= _LOG_EVERY_S:
            self._written_s = self._now()
            scale, unit = (1e6, " MB") if line["unit"] == "bytes" else (1, "")
            total = f" of {line['n_total'] / scale:,.0f}" if line["n_total"] else ""
            left = f", about {max(1, round(line['remaining_s'] / 60))} min left" if line["remaining_s"] else ""
            click.echo(printable(f"{line['title']}: {line['n_done'] / scale:,.0f}{total}{unit}{left}."), err=True)


class EventBar:
    """A bar as `step` events, at most ten a second: title, how much of how much, how fast, how much longer."""

    def __init__(
        self,
        events: JobEvents | _LogLines,
        title: str,
        n_total: int | None,
        *,
        is_bytes: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._title, self._n_done, self._n_total = title, 0, n_total
        self._unit = "bytes" if is_bytes else "steps"
        self._now = now
        self._speed = Speedometer(now)
        self._emitted_s = 0.0
        self._is_emitted = False

    def begin(self) -> None:
        self._emit()

    def end(self) -> None:
        if not self._is_emitted:
            self._emit()

    def update(self, *, n_done: int | None = None, n_total: int | None = None, title: str | None = None) -> None:
        """Update the progress, and emit it at most ten times a second. Texts need not be sanitized."""
        self._n_done = self._n_done if n_done is None else n_done
        self._n_total = self._n_total if n_total is None else n_total
        self._title = self._title if title is None else title
        self._is_emitted = False
        if self._now() - self._emitted_s >= _EVERY_S:
            self._emit()

    def note(self, sentence: str) -> None:
        """Emit a sentence beside the bar."""
        self._events.emit(event="note", text=sentence)

    def _emit(self) -> None:
        per_s = self._speed.bytes_per_s(self._n_done)
        n_left = None if self._n_total is None else self._n_total - self._n_done
        self._events.emit(
            event="step",
            title=self._title,
            unit=self._unit,
            n_done=self._n_done,
            n_total=self._n_total,
            per_s=per_s,
            remaining_s=n_left / per_s if per_s > 0 and n_left is not None else None,
        )
        self._emitted_s, self._is_emitted = self._now(), True


class _TerminalBar:
    """The same as a bar on stderr that is erased when done."""

    def __init__(self, title: str, n_total: int | None, is_bytes: bool) -> None:
        counts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # rich would send a piped stdout to stderr
        )
        self._task = self._progress.add_task(title, total=n_total)

    def begin(self) -> None:
        self._progress.start()

    def end(self) -> None:
        self._progress.stop()

    def update(self, *, n_done: int | None = None, n_total: int | None = None, title: str | None = None) -> None:
        description = None if title is None else printable(title)
        self._progress.update(self._task, completed=n_done, total=n_total, description=description)

    def note(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self._progress.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)


_Step = TypeVar("_Step", bound=TaskProgress)


def with_progress(title: str, steps: Iterator[_Step]) -> Iterator[_Step]:
    """Yield `steps` while a bar follows them."""
    with Shown(title, None) as shown:
        for step in steps:
            shown.bar.update(n_total=step.n_steps, n_done=step.index + 1)
            yield step


class Shown:
    """A context manager around the bar of this verb, of `n_total` steps; None while unknown."""

    def __init__(
        self,
        title: str,
        n_total: int | None,
        *,
        is_bytes: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        context = click.get_current_context(silent=True)
        events = context.find_object(JobEvents) if context else None
        self.bar: EventBar | _TerminalBar
        if events is None and Console(stderr=True).is_terminal:
            self.bar = _TerminalBar(title, n_total, is_bytes)
        else:
            self.bar = EventBar(events or _LogLines(now), title, n_total, is_bytes=is_bytes, now=now)

    def __enter__(self) -> Self:
        self.bar.begin()
        return self

    def __exit__(self, *_error: object) -> None:
        self.bar.end()


class DownloadProgress(Shown):
    """A bar of a download's events; some are printed as a sentence above it."""

    def __init__(self) -> None:
        super().__init__("Looking up files", None, is_bytes=True)
        self._is_fetching = False
        self._is_converting = False

    def show(self, event: download.Event) -> None:
        if isinstance(event, download.Fetching | download.Progress):
            self._is_fetching = event.n_done < event.n_bytes
            self.bar.update(n_total=event.n_bytes, n_done=event.n_done, title=event.name)
        elif isinstance(event, download.Unpacking):
            self.bar.update(n_total=event.n_bytes, n_done=event.n_done, title=f"Unpacking {event.name}")
        elif isinstance(event, download.Converting):
            # the disk space once; the conversion moves the bar while nothing is downloaded
            if not self._is_converting:
                peak = f"{event.peak_disk_bytes / 1e9:.2f} GB of disk space at most"
                self.bar.note(f"{event.name} is converted while downloading: {peak}.")
            self._is_converting = True
            if not self._is_fetching:
                self.bar.update(n_total=event.n_bytes, n_done=event.n_written, title=event.name)
        elif sentence := download.event_text(event):
            self.bar.note(sentence)


class JobProgress(Shown):
    """A bar of a quantize job's events."""

    def __init__(self) -> None:
        super().__init__("Reading headers", None, is_bytes=True)

    def show(self, event: Event) -> None:
        if isinstance(event, JobPlanned):
            self.bar.update(n_total=event.n_bytes)
        elif isinstance(event, TensorWritten):
            self.bar.update(n_done=event.n_written, title=f"{event.name} {event.stored} → {event.target}")


class Meter(Shown):
    """A bar of `n_total` things, or of as many bytes."""

    def __init__(self, title: str, n_total: int, *, is_bytes: bool = False) -> None:
        super().__init__(title, n_total, is_bytes=is_bytes)
        self._n_done = 0

    def advance(self, n: int = 1) -> None:
        self._n_done += n
        self.bar.update(n_done=self._n_done)
