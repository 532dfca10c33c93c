"""A checkpoint that is made a GGUF while it comes: each shard is converted once it is whole and its hash is right.

Owns the order of things between the hub and the job that converts: what is fetched next, what the job is told, which
shard goes. However a run ended, the next one goes on with it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.library.download.connection import Connection
from app.library.download.downloader import Downloader
from app.library.download.events import Chosen, Converting, Done
from app.library.order import Order
from app.library.pull import Place, Puller
from app.library.remote_file import RemoteFile
from app.library.removal import remove_empty_folders
from app.library.shard_heads import announced
from app.library.shard_window import ShardWindow
from app.library.staging import FETCHING, Staging, staged
from quantizer.errors import StorageError
from quantizer.events import Awaiting, Event, Planned, Progress, Reads, Resumed
from quantizer.job import JobRequest
from quantizer.runner import Conversation, conversing

__all__ = ["CheckpointPuller", "begun_mark"]

_WEIGHTS = ".safetensors"
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CheckpointPuller:
    """Brings a checkpoint and makes of it what `request` says; `hear` is told what the job says.

    With `is_removing` a shard goes once nothing more is made of it, and no more come than the conversion needs.
    """

    puller: Puller
    request: JobRequest
    is_removing: bool
    hear: Callable[[Event], None]

    async def pull(self, place: Place) -> Path:
        """Fetch and convert what `place` orders; returns the path of its config.json.

        Raises as `Puller.pull` does, and as the job does.
        """
        return await self.puller.attempt(place, self._made)

    async def _made(self, connection: Connection, order: Order) -> Path:
        report, first = self.puller.report, order.files[0]
        report(Chosen(order.source, first.name, len(order.files), order.n_bytes, order.reason))
        async with staged(order.folder, [file.name for file in order.files], report) as staging:
            store = _Store(self.puller, Downloader(connection, self.puller.options, report), staging, order)
            output = Path(self.request.output)
            mark = begun_mark(order.folder, output)
            if _is_begun(mark, output):  # else a run was killed that had only to clear up
                await self._stream(connection, store)
            report(Done(str(staging.target(first.name)), order.n_bytes, store.hashes(), store.is_new))
            await asyncio.to_thread(store.clear, mark, is_removing=self.is_removing)
            return staging.target(first.name)

    async def _stream(self, connection: Connection, store: _Store) -> None:
        weights = [file for file in store.order.files if file.name.endswith(_WEIGHTS)]
        for file in store.order.files:
            if file not in weights:
                await store.bring(file.name)
        shards = await announced(connection, store.staging, weights, self.puller.options.retry)
        request = replace(self.request, shards=shards)
        await _Stream(store, weights, request, self.is_removing, self.hear).run()


def _is_begun(mark: Path, output: Path) -> bool:
    """Set the `mark`, unless it stands from a run that made the `output`."""
    is_made = output.exists() and mark.exists()
    mark.touch()
    return not is_made


def begun_mark(folder: Path, output: Path) -> Path:
    """The file that lies beside what is fetched into `folder` from when `output` is begun until all is done."""
    return folder / FETCHING / f"{output.name}.begun"


@dataclass(slots=True)
class _Store:
    """The files of an order: each stands under its name, or is fetched and then placed there."""

    puller: Puller
    downloader: Downloader
    staging: Staging
    order: Order
    is_new: bool = False
    found: dict[str, str] = field(default_factory=dict)

    async def is_here(self, file: RemoteFile) -> bool:
        """Whether the file stands. Raises StorageError where another one is in its place."""
        hashes = await self.puller.standing(self.staging, [file])
        if hashes is not None:
            self.found[file.name] = hashes[0]
        return hashes is not None

    async def bring(self, name: str) -> None:
        """Have the file stand, whole and with the right hash. Raises as `Downloader.fetch` does."""
        file = next(file for file in self.order.files if file.name == name)
        if await self.is_here(file):
            return
        self.found[name] = await self.downloader.fetch(file, self.staging.made(name))
        await asyncio.to_thread(self.staging.place, name)
        self.puller.keep_record(self.staging.target(name), file, self.found[name])
        self.is_new = True

    def remove(self, name: str) -> None:
        """Raises StorageError."""
        path = self.staging.target(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{path} cannot be removed: {error.strerror}.", "Check its permissions.") from error

    def hashes(self) -> tuple[str, ...]:
        """What each file hashes to, that a run before was through with as the hub says."""
        return tuple(self.found.get(file.name, file.digest.hex) for file in self.order.files)

    def clear(self, mark: Path, *, is_removing: bool) -> None:
        """Remove what is needed only until all is done, and `mark` last. Raises StorageError."""
        for file in self.order.files if is_removing else ():
            self.remove(file.name)
            remove_empty_folders(self.staging.target(file.name).parent)
        self.staging.discard()
        for path in (*mark.parent.glob("*.head"), mark):
            path.unlink(missing_ok=True)


class _Stream:
    """One run of the job with the shards that it reads."""

    def __init__(
        self,
        store: _Store,
        weights: list[RemoteFile],
        request: JobRequest,
        is_removing: bool,
        hear: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._weights = {file.name: file for file in weights}
        self._request = request
        self._is_removing = is_removing
        self._hear = hear
        self._here: set[str] = set()
        self._urgent: list[str] = []
        self._window: ShardWindow | None = None
        self._n_planned_bytes = 0
        self._n_written_bytes = 0
        self._peak_bytes = 0
        self._n_tensors = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Convert it all. Raises what fetching and the job raise."""
        for file in self._weights.values():
            if await self._store.is_here(file):
                self._here.add(file.name)
        async with conversing(self._request) as job:
            for name in self._here:
                await job.came(name)
            fetching, listening = asyncio.create_task(self._fetch(job)), asyncio.create_task(self._listen(job))
            try:
                await asyncio.wait({fetching, listening}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (listening, fetching):
                    if task.done():
                        task.result()
            finally:
                for task in (fetching, listening):
                    task.cancel()
                await asyncio.gather(fetching, listening, return_exceptions=True)

    async def _listen(self, job: Conversation) -> None:
        async for event in job.events():
            async with self._changed:
                self._take_in(event)
                self._changed.notify_all()
            self._hear(event)

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
                self._report()
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
        self._report()
        n_missing = self._peak_bytes - n_here - self._n_written_bytes
        folder = Path(self._request.output).parent
        free = shutil.disk_usage(folder).free
        if free < n_missing + _SPARE_BYTES:
            cause = f"That takes {n_missing / 1e9:.3f} GB more at the most, and {folder} has {free / 1e9:.3f} GB free."
            raise StorageError(cause, "Free some space, or set LOCALLLM_DATA_DIR to another disk.")

    def _report(self) -> None:
        name = Path(self._request.output).name
        said = Converting(name, self._n_planned_bytes, self._n_written_bytes, self._peak_bytes)
        self._store.puller.report(said)
