"""Progress on the terminal: one line on stderr that keeps up, and nothing at all when stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from app.engine.child import Step
from app.library.download import events as download
from app.terminal import printable
from quantizer.events import Event, Planned
from quantizer.events import Progress as TensorProgress

__all__ = ["DownloadProgress", "JobProgress", "Meter", "with_progress"]


_Step = TypeVar("_Step", bound=Step)


def with_progress(title: str, steps: Iterator[_Step]) -> Iterator[_Step]:
    """Hand on `steps` while a bar keeps up."""
    with _bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(title, total=None)
        for step in steps:
            bar.update(task, total=step.n_steps, completed=step.index + 1)
            yield step


class _Shown:
    """A context manager around a bar for `n_total` of something; None is not known yet."""

    def __init__(self, title: str, n_total: int | None, *counts: ProgressColumn) -> None:
        self._bar = _bar(*counts)
        self._task = self._bar.add_task(title, total=n_total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class DownloadProgress(_Shown):
    """A bar, fed with what a download says; what is worth a sentence stands above it."""

    def __init__(self) -> None:
        super().__init__("Asking what there is", None, DownloadColumn(), TransferSpeedColumn())

    def show(self, event: download.Event) -> None:
        """Bring the line up to date, or put a sentence above it."""
        if isinstance(event, download.Fetching | download.Progress):
            name = printable(event.name)
            self._bar.update(self._task, total=event.n_bytes, completed=event.n_done, description=name)
        elif sentence := _sentence(event):
            self._bar.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)


def _sentence(event: download.Event) -> str:
    match event:
        case download.Chosen():
            files = f" in {event.n_files} files" if event.n_files > 1 else ""
            return f"{event.name}, {event.n_bytes / 1e9:.2f} GB{files}. {event.reason}"
        case download.Waiting():
            return f"Another localllm fetches {event.name}: waiting for it."
        case download.Retrying():
            return f"{event.name}: {event.reason}; again in {event.wait_s:.1f} s."
        case download.Discarded():
            return f"{event.name} begins anew: {event.reason}."
    return ""


class JobProgress(_Shown):
    """A bar, fed with a job's events."""

    def __init__(self) -> None:
        super().__init__("Reading headers", None, DownloadColumn(), TransferSpeedColumn())

    def show(self, event: Event) -> None:
        """Bring the line up to date; other events than the plan and tensors change nothing."""
        if isinstance(event, Planned):
            self._bar.update(self._task, total=event.n_bytes)
        elif isinstance(event, TensorProgress):
            description = printable(f"{event.name} {event.stored} → {event.target}")
            self._bar.update(self._task, completed=event.n_written, description=description)


class Meter(_Shown):
    """A bar of `n_total` things, or of as many bytes."""

    def __init__(self, title: str, n_total: int, *, is_bytes: bool = False) -> None:
        counts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
        super().__init__(title, n_total, *counts)

    def advance(self, n: int = 1) -> None:
        """Count `n` more as done."""
        self._bar.advance(self._task, n)


def _bar(*counts: ProgressColumn) -> Progress:
    """A bar that is gone when done: what goes on, how far, the `counts`, and how long it will take."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # rich would send a piped stdout to stderr
        disable=not console.is_terminal,
    )
