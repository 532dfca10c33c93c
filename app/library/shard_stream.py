"""Converting shards as they come: one run of the job that converts, and the fetching of what it reads.

Owns what is fetched next, what the job is told, and which shard goes when. However a run ended, the next goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from app.library.checkpoint_store import CheckpointStore
from app.library.download.events import Converting, Report
from app.library.shard_window import ShardWindow
from quantizer.errors import StorageError
from quantizer.events import Awaiting, Event, Planned, Progress, Reads, Resumed
from quantizer.job import JobRequest
from quantizer.runner import Conversation, conversing

__all__ = ["ShardStream"]

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

    async def run(self, hear: Callable[[Event], None]) -> None:
        """Convert it all; `hear` is told what the job says. Raises what fetching and the job raise."""
        for file in self._weights.values():
            if await self._store.is_here(file):
                self._here.add(file.name)
        async with conversing(self._request) as job:
            for name in self._here:
                await job.came(name)
            fetching, listening = asyncio.create_task(self._fetch(job)), asyncio.create_task(self._listen(job, hear))
            try:
                await asyncio.wait({fetching, listening}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (listening, fetching):
                    if task.done():
                        task.result()
            finally:
                for task in (fetching, listening):
                    task.cancel()
                await asyncio.gather(fetching, listening, return_exceptions=True)

    async def _listen(self, job: Conversation, hear: Callable[[Event], None]) -> None:
        async for event in job.events():
            async with self._changed:
                self._take_in(event)
                self._changed.notify_all()
            hear(event)

    def _take_in(self, event: Event) -> None:
        match event:
            case Planned():
                self._n_planned_bytes = event.n_bytes
            case Resumed():
                self._n_tensors, self._n_written_bytes = event.n_tensors, event.n_bytes
            case Awaiting() if self._window is None and event.name not in self._here:
                self._urgent.append(event.name)  # planning itself reads it
            case Reads():
                n_bytes = {name: file.n_bytes for name, file in self._weights.items()}
                self._window = ShardWindow.of(event.files, n_bytes)
                self._check_space(self._window)
                self._release(self._window)
            case Progress() if self._window:
                self._n_tensors, self._n_written_bytes = event.index + 1, event.n_written
                self._tell()
                self._release(self._window)

    async def _fetch(self, job: Conversation) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._next() or self._has_all())
                name = self._next()
            if not name:
                return
            await self._store.bring(name)
            self._here.add(name)
            self._urgent = [other for other in self._urgent if other != name]
            await job.came(name)

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
