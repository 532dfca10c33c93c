"""A job's progress on the terminal: one line on stderr that keeps up, and nothing at all when stderr is no terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from app.terminal import printable
from quantizer.events import Event, Planned
from quantizer.events import Progress as TensorProgress

__all__ = ["JobProgress"]


class JobProgress:
    """A context manager around a rich progress bar, fed with a job's events."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("Reading headers", total=None)

    def __enter__(self) -> JobProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, event: Event) -> None:
        """Bring the line up to date; other events than the plan and tensors change nothing."""
        if isinstance(event, Planned):
            self._bar.update(self._task, total=event.n_bytes)
        elif isinstance(event, TensorProgress):
            name = Text(printable(event.name)).plain
            self._bar.update(
                self._task, completed=event.n_written, description=f"{name} {event.stored} → {event.target}"
            )
