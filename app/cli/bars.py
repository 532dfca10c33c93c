"""Where progress goes: one line on stderr that keeps up, events where the service listens, or nowhere.

Owns the choice, and what a bar on a terminal looks like. Knows nothing of what is counted.
"""

from __future__ import annotations

import sys
from typing import Protocol

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

from app.cli.job_events import EventBar, JobEvents
from app.terminal import printable

__all__ = ["Bar", "open_bar"]


class Bar(Protocol):
    """How far something is: `n_done` of `n_total`, None where that is not known yet. Texts need not be printable."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def update(self, *, n_done: int | None = None, n_total: int | None = None, title: str | None = None) -> None: ...

    def tell(self, sentence: str) -> None: ...


def open_bar(title: str, n_total: int | None, *, is_bytes: bool) -> Bar:
    """Return the bar for whoever watches this verb."""
    context = click.get_current_context(silent=True)
    events = context.find_object(JobEvents) if context else None
    return EventBar(events, title, n_total, is_bytes=is_bytes) if events else _TerminalBar(title, n_total, is_bytes)


class _TerminalBar:
    """A bar on stderr that is gone when done; nothing at all where that is no terminal."""

    def __init__(self, title: str, n_total: int | None, is_bytes: bool) -> None:
        counts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # rich would send a piped stdout to stderr
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=n_total)

    def begin(self) -> None:
        self._progress.start()

    def end(self) -> None:
        self._progress.stop()

    def update(self, *, n_done: int | None = None, n_total: int | None = None, title: str | None = None) -> None:
        description = None if title is None else printable(title)
        self._progress.update(self._task, completed=n_done, total=n_total, description=description)

    def tell(self, sentence: str) -> None:
        """Put a sentence above the bar."""
        self._progress.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
