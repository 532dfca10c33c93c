"""What verbs show of their progress: downloads, jobs, steps and counts, each on a bar."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from app.cli.bars import open_bar
from app.engine.child import Step
from app.library.download import events as download
from quantizer.events import Event, Planned
from quantizer.events import Progress as TensorProgress

__all__ = ["DownloadProgress", "JobProgress", "Meter", "with_progress"]


_Step = TypeVar("_Step", bound=Step)


def with_progress(title: str, steps: Iterator[_Step]) -> Iterator[_Step]:
    """Hand on `steps` while a bar keeps up."""
    with _Shown(title, None) as shown:
        for step in steps:
            shown.bar.update(n_total=step.n_steps, n_done=step.index + 1)
            yield step


class _Shown:
    """A context manager around a bar for `n_total` of something; None is not known yet."""

    def __init__(self, title: str, n_total: int | None, *, is_bytes: bool = False) -> None:
        self.bar = open_bar(title, n_total, is_bytes=is_bytes)

    def __enter__(self) -> Self:
        self.bar.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.end()


class DownloadProgress(_Shown):
    """A bar, fed with what a download says; what is worth a sentence stands above it."""

    def __init__(self) -> None:
        super().__init__("Asking what there is", None, is_bytes=True)
        self._is_fetching = False
        self._is_converting = False

    def show(self, event: download.Event) -> None:
        """Bring the line up to date, or put a sentence above it."""
        if isinstance(event, download.Fetching | download.Progress):
            self._is_fetching = event.n_done < event.n_bytes
            self.bar.update(n_total=event.n_bytes, n_done=event.n_done, title=event.name)
        elif isinstance(event, download.Converting):
            self._convert(event)
        elif sentence := download.sentence_of(event):
            self.bar.tell(sentence)

    def _convert(self, event: download.Converting) -> None:
        """Say once what disk that takes, and keep up with it while nothing is fetched."""
        if not self._is_converting:
            peak = f"{event.peak_disk_bytes / 1e9:.2f} GB of disk at the most"
            self.bar.tell(f"{event.name} is made of it as it comes: {peak}.")
        self._is_converting = True
        if not self._is_fetching:
            self.bar.update(n_total=event.n_bytes, n_done=event.n_written, title=event.name)


class JobProgress(_Shown):
    """A bar, fed with a job's events."""

    def __init__(self) -> None:
        super().__init__("Reading headers", None, is_bytes=True)

    def show(self, event: Event) -> None:
        """Bring the line up to date; other events than the plan and tensors change nothing."""
        if isinstance(event, Planned):
            self.bar.update(n_total=event.n_bytes)
        elif isinstance(event, TensorProgress):
            self.bar.update(n_done=event.n_written, title=f"{event.name} {event.stored} → {event.target}")


class Meter(_Shown):
    """A bar of `n_total` things, or of as many bytes."""

    def __init__(self, title: str, n_total: int, *, is_bytes: bool = False) -> None:
        super().__init__(title, n_total, is_bytes=is_bytes)
        self._n_done = 0

    def advance(self, n: int = 1) -> None:
        """Count `n` more as done."""
        self._n_done += n
        self.bar.update(n_done=self._n_done)
