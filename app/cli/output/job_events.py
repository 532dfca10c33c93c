"""The events of a verb that runs as a job of the service: a line of JSON on stdout for each change of a bar.

`app.service.jobs.run` reads them, beside what the verb itself prints with --json.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import click

from app.library.download.events import Speedometer
from quantizer.system.errors import UserError
from quantizer.write.events import JobFailed, encode_event

_EVERY_S = 0.1


class JobEvents:
    """Sends lines to the service. Where the service is gone, this process exits at once."""

    def emit(self, **line: object) -> None:
        """Print one event; `event` is its kind."""
        try:
            click.echo(json.dumps(line))
        except OSError:
            os._exit(1)

    def failed(self, error: UserError) -> None:
        """Report how the verb failed."""
        self.emit(**encode_event(JobFailed.of(error)))


class EventBar:
    """A bar as `step` events, at most ten a second: title, how much of how much, how fast, how much longer."""

    def __init__(
        self,
        events: JobEvents,
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
        """Update the progress, and emit it at most ten times a second."""
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
