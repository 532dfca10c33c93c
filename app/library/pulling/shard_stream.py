"""Which shards of a checkpoint may lie on the disk at once while it is converted as it comes. Pure.

Owns the rule: one shard is fetched ahead of those that are being converted, and none before its turn. A shard goes once
the last tensor that is made of it is written. Knows nothing of files or of who fetches.

Converting shards as they come: one run of the job that converts, and the fetching of what it reads.

Owns what is fetched next, what the job is told, and which shard goes when. However a run ended, the next goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.library.download.events import Converting, Report
from app.library.pulling.checkpoint_store import CheckpointStore
from quantizer.errors import StorageError
from quantizer.write.events import Event, Planned, Progress, Resumed, ShardOrder, WaitingForShard
from quantizer.write.job import JobRequest, RunningQuantization, open_job

__all__ = ["Read", "ShardStream", "ShardWindow"]


@dataclass(frozen=True, slots=True)
class Read:
    """A shard of `n_bytes` that the tensors from number `first` to `last` are made of, not all of them."""

    name: str
    first: int
    last: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ShardWindow:
    """The shards that a conversion reads, by first use."""

    reads: tuple[Read, ...]

    @classmethod
    def of(cls, reads: Iterable[tuple[str, int, int]], n_bytes: Mapping[str, int]) -> ShardWindow:
        """Make it of what a job says that it reads."""
        return cls(tuple(Read(name, first, last, n_bytes[name]) for name, first, last in reads))

    def may_come(self, n_written: int) -> set[str]:
        """The shards whose turn it is once `n_written` tensors stand.

        Of those that are over when a shard is needed, all but the one right before it must be done with.
        """
        return {
            read.name
            for index, read in enumerate(self.reads)
            if all(other.last < n_written for other in self.reads[: max(index - 1, 0)] if other.last < read.first)
        }

    def done_with(self, n_written: int) -> set[str]:
        """The shards of which nothing is read any more once `n_written` tensors stand."""
        return {read.name for read in self.reads if read.last < n_written}

    def peak_bytes(self, here: Collection[str]) -> int:
        """The most that lies on the disk at once, where the shards in `here` lie there from the beginning."""
        peaks = [sum(read.n_bytes for read in self.reads if read.name in here)]
        for index, read in enumerate(self.reads):
            before, later = self.reads[: max(index - 1, 0)], self.reads[index + 1 :]
            beside = [other for other in before if other.last >= read.first] + [it for it in later if it.name in here]
            peaks.append(sum(it.n_bytes for it in (*beside, *self.reads[max(index - 1, 0) : index + 1])))
        return max(peaks)


_SPARE_BYTES = 64 << 20


class ShardStream:
    """One run of the job with the shards that it reads."""

    def __init__(self, store: CheckpointStore, request: JobRequest, *, is_removing: bool, report: Report) -> None:
        self._store = store
        self._weights = {file.name: file for file in store.weights}
        self._request = request
        self._is_removing = is_removing
        self._report = report
        self._here: set[str] = set()
        self._urgent: list[str] = []
        self._window: ShardWindow | None = None
        self._n_planned_bytes = 0
        self._n_written_bytes = 0
        self._peak_bytes = 0
        self._n_tensors = 0
        self._changed = asyncio.Condition()

    async def run(self, on_event: Callable[[Event], None]) -> None:
        """Convert it all; `on_event` is told what the job says. Raises what fetching and the job raise."""
        for file in self._weights.values():
            if await self._store.is_here(file):
                self._here.add(file.name)
        async with open_job(self._request) as job:
            for name in self._here:
                await job.mark_arrived(name)
            fetching, listening = (
                asyncio.create_task(self._fetch(job)),
                asyncio.create_task(self._listen(job, on_event)),
            )
            try:
                await asyncio.wait({fetching, listening}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (listening, fetching):
                    if task.done():
                        task.result()
            finally:
                for task in (fetching, listening):
                    task.cancel()
                await asyncio.gather(fetching, listening, return_exceptions=True)

    async def _listen(self, job: RunningQuantization, on_event: Callable[[Event], None]) -> None:
        async for event in job.events():
            async with self._changed:
                self._take_in(event)
                self._changed.notify_all()
            on_event(event)

    def _take_in(self, event: Event) -> None:
        match event:
            case Planned():
                self._n_planned_bytes = event.n_bytes
            case Resumed():
                self._n_tensors, self._n_written_bytes = event.n_tensors, event.n_bytes
            case WaitingForShard() if self._window is None and event.name not in self._here:
                self._urgent.append(event.name)  # planning itself reads it
            case ShardOrder():
                n_bytes = {name: file.n_bytes for name, file in self._weights.items()}
                self._window = ShardWindow.of(event.files, n_bytes)
                self._check_space(self._window)
                self._release(self._window)
            case Progress() if self._window:
                self._n_tensors, self._n_written_bytes = event.index + 1, event.n_written
                self._tell()
                self._release(self._window)

    async def _fetch(self, job: RunningQuantization) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._next() or self._has_all())
                name = self._next()
            if not name:
                return
            await self._store.bring(name)
            self._here.add(name)
            self._urgent = [other for other in self._urgent if other != name]
            await job.mark_arrived(name)

    def _next(self) -> str:
        """The shard to fetch now, empty where none is due."""
        if self._window is None:
            return next(iter(self._urgent), "")
        due = self._window.may_come(self._n_tensors) if self._is_removing else self._left(self._window)
        return next((name for name in self._left(self._window) if name in due), "")

    def _has_all(self) -> bool:
        return self._window is not None and not self._left(self._window)

    def _left(self, window: ShardWindow) -> list[str]:
        """The shards that still have to come, in the order of their first use."""
        reads = [read.name for read in window.reads]
        others = [] if self._is_removing else [name for name in self._weights if name not in reads]
        over = window.done_with(self._n_tensors) if self._is_removing else set()
        return [name for name in (*reads, *others) if name not in self._here | over]

    def _release(self, window: ShardWindow) -> None:
        """Let the shards go that nothing more is made of."""
        if self._is_removing:
            needed = {read.name for read in window.reads} - window.done_with(self._n_tensors)
            for name in self._here - needed:
                self._store.remove(name)
            self._here &= needed

    def _check_space(self, window: ShardWindow) -> None:
        """Say what disk the rest takes at the most, and raise StorageError where that is not free."""
        n_here = sum(self._weights[name].n_bytes for name in self._here)
        held = window.peak_bytes(self._here) if self._is_removing else sum(f.n_bytes for f in self._weights.values())
        self._peak_bytes = held + self._n_planned_bytes
        self._tell()
        n_missing = self._peak_bytes - n_here - self._n_written_bytes
        folder = Path(self._request.output).parent
        free = shutil.disk_usage(folder).free
        if free < n_missing + _SPARE_BYTES:
            cause = f"That takes {n_missing / 1e9:.3f} GB more at the most, and {folder} has {free / 1e9:.3f} GB free."
            raise StorageError(cause, "Free some space, or set LOCALLLM_DATA_DIR to another disk.")

    def _tell(self) -> None:
        name = Path(self._request.output).name
        self._report(Converting(name, self._n_planned_bytes, self._n_written_bytes, self._peak_bytes))
