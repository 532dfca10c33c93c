"""Pulls of checkpoints that are converted to a GGUF while they are fetched, by one process at a time.

Owns the steps, and the shards' headers: the first bytes of each safetensors file, fetched before the file, stored under
a name with its hash, and compared with the shard once that is complete. One shard ahead of those being converted is
fetched, and each is removed after the last tensor made of it is written. After any end of a run the next one resumes; a
mark identifies one that was killed during its clean-up.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.library.download.downloader import Downloader
from app.library.download.events import Chosen, Converting, Done, Report
from app.library.download.http_session import HttpSession, RangeSource, RetryPolicy
from app.library.download.remote_file import RemoteFile
from app.library.hub.remote_model import RemoteHeader, read_up_to
from app.library.local.removal import FETCHING, remove_empty_folders
from app.library.pulling.puller import MakePlan, Puller, PullPlan, Staging, staged
from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.pending_shards import PendingShard
from quantizer.gguf.gguf_reader import open_local
from quantizer.system.errors import StorageError
from quantizer.system.files import explained, read_regular, write_atomically
from quantizer.write.events import Event, JobPlanned, JobResumed, ShardOrder, TensorWritten, WaitingForShard
from quantizer.write.job import JobRequest, RunningQuantization, open_job

_FIRST_BYTES = 64 << 10  # usually enough
_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000  # the limit of the safetensors library itself
_N_AT_ONCE = 4
_SPARE_BYTES = 64 << 20
_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointPuller:
    """Fetches a checkpoint and runs the conversion `request`, whose events go to `on_event`. With `is_removing` each
    shard is removed after its last use, and fetched only when the conversion needs it."""

    puller: Puller
    request: JobRequest
    is_removing: bool
    on_event: Callable[[Event], None]

    async def pull(self, make_plan: MakePlan) -> Path:
        """Fetch and convert the planned checkpoint; return the path of its config.json. Raises as `Puller.pull` and the
        job do."""
        return await self.puller.retry_on_change(make_plan, self._run)

    async def _run(self, session: HttpSession, plan: PullPlan) -> Path:
        report, first, output = self.puller.report, plan.files[0].name, Path(self.request.output)
        report(Chosen(plan.source, first, len(plan.files), plan.n_bytes, plan.reason))
        async with staged(plan.folder, [file.name for file in plan.files], report) as staging:
            store = CheckpointStore(self.puller, Downloader(session, self.puller.options, report), staging, plan)
            if not was_converted(plan.folder, output):
                check_free(plan.folder, output, is_overwriting=self.request.is_overwriting)
                store.begin(output)
                weights = store.weights
                for file in plan.files:
                    if file not in weights:
                        await store.fetch(file.name)
                shards = await fetch_shard_headers(session, staging, weights, self.puller.options.retry)
                request = replace(self.request, shards=shards)
                await ShardStream(store, request, is_removing=self.is_removing, report=report).run(self.on_event)
            report(Done(str(staging.target(first)), plan.n_bytes, store.hashes(), store.is_new))
            await asyncio.to_thread(store.clear, output, is_removing=self.is_removing)
            return staging.target(first)


def check_free(folder: Path, output: Path, *, is_overwriting: bool) -> None:
    """Raise StorageError if `output` exists and may not be overwritten."""
    if output.exists() and not is_overwriting and not was_converted(folder, output):
        raise StorageError(f"{output} exists already.", "Pass --overwrite to replace it.")


async def fetch_shard_headers(
    session: HttpSession, staging: Staging, files: Sequence[RemoteFile], policy: RetryPolicy
) -> tuple[PendingShard, ...]:
    """Return the shards of `files` with their headers in `staging`: fetched, or read from a file that is complete.
    Raises HubError, CheckpointError for a file that is not safetensors, StorageError."""
    limit = asyncio.Semaphore(_N_AT_ONCE)

    async def prepare(file: RemoteFile) -> PendingShard:
        async with limit:
            path, whole = staging.prepared_path(f"{file.name}.{file.digest.hex[:16]}.head"), staging.target(file.name)
            if not path.exists():
                if whole.exists():
                    shard = open_local(whole)
                    header = shard.read(0, _header_bytes(shard.read(0, _LENGTH_BYTES), shard.n_bytes, whole.name))
                else:
                    source, head = RangeSource(session, file), RemoteHeader(file.n_bytes)
                    await read_up_to(min(_FIRST_BYTES, file.n_bytes), source, head, file, policy)
                    n_bytes = _header_bytes(bytes(head.data[:_LENGTH_BYTES]), file.n_bytes, file.name)
                    await read_up_to(n_bytes, source, head, file, policy)
                    header = bytes(head.data[:n_bytes])
                with explained(f"{path.name} could not be written", "Free some space."):
                    write_atomically(path, header, sync=False)
            return PendingShard(file.name, file.n_bytes, file.fingerprint, str(path))

    return tuple(await asyncio.gather(*map(prepare, files)))


def _header_bytes(length: bytes, file_bytes: int, name: str) -> int:
    n_bytes = _LENGTH_BYTES + int.from_bytes(length, "little")
    if n_bytes > min(_MOST_BYTES, file_bytes):
        raise CheckpointError(f"{name} is not a valid safetensors file.", "Look for another checkpoint.")
    return n_bytes


@dataclass(frozen=True, slots=True)
class ShardUse:
    """A shard of `n_bytes` that some tensors between the numbers `first` and `last` are made of."""

    name: str
    first: int
    last: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ShardWindow:
    """Which shards may be on the disk at once. `uses` are in the order of their first use. Pure."""

    uses: tuple[ShardUse, ...]

    def fetchable(self, n_written: int) -> set[str]:
        """Return the shards that may be fetched once `n_written` tensors are written. Of the shards whose last use
        precedes a shard's first, all but the one right before it must be finished."""
        return {
            use.name
            for index, use in enumerate(self.uses)
            if all(other.last < n_written for other in self.uses[: max(index - 1, 0)] if other.last < use.first)
        }

    def finished(self, n_written: int) -> set[str]:
        """Return the shards that are not read again once `n_written` tensors are written."""
        return {use.name for use in self.uses if use.last < n_written}

    def peak_bytes(self, existing: Collection[str]) -> int:
        """Return the most bytes on the disk at once, if the shards `existing` are there from the beginning."""
        peaks = [sum(use.n_bytes for use in self.uses if use.name in existing)]
        for index, use in enumerate(self.uses):
            before, later = self.uses[: max(index - 1, 0)], self.uses[index + 1 :]
            others = [it for it in before if it.last >= use.first] + [it for it in later if it.name in existing]
            peaks.append(sum(it.n_bytes for it in (*others, *self.uses[max(index - 1, 0) : index + 1])))
        return max(peaks)


class ShardStream:
    """One run of the job and the fetching of its shards."""

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
        """Convert everything, passing the job's events to `on_event`. Raises as fetching and the job do."""
        for file in self._weights.values():
            if await self._store.exists(file):
                self._here.add(file.name)
        async with open_job(self._request) as job:
            for name in self._here:
                await job.mark_arrived(name)
            fetching = asyncio.create_task(self._fetch(job))
            listening = asyncio.create_task(self._listen(job, on_event))
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
                match event:
                    case JobPlanned():
                        self._n_planned_bytes = event.n_bytes
                    case JobResumed():
                        self._n_tensors, self._n_written_bytes = event.n_tensors, event.n_bytes
                    case WaitingForShard() if self._window is None and event.name not in self._here:
                        self._urgent.append(event.name)  # the job needs it for planning
                    case ShardOrder():
                        uses = (ShardUse(*use, self._weights[use[0]].n_bytes) for use in event.files)
                        self._window = ShardWindow(tuple(uses))
                        self._check_space(self._window)
                        self._release(self._window)
                    case TensorWritten() if self._window:
                        self._n_tensors, self._n_written_bytes = event.index + 1, event.n_written
                        self._report_progress()
                        self._release(self._window)
                self._changed.notify_all()
            on_event(event)

    async def _fetch(self, job: RunningQuantization) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._next() or (self._window is not None and not self._left(self._window))
                )
                name = self._next()
            if not name:
                return
            await self._store.fetch(name)
            self._here.add(name)
            self._urgent = [other for other in self._urgent if other != name]
            await job.mark_arrived(name)

    def _next(self) -> str:
        """Return the shard to fetch now, empty for none."""
        if self._window is None:
            return next(iter(self._urgent), "")
        left = self._left(self._window)
        fetchable = self._window.fetchable(self._n_tensors) if self._is_removing else left
        return next((name for name in left if name in fetchable), "")

    def _left(self, window: ShardWindow) -> list[str]:
        """Return the shards that still have to be fetched, in the order of their first use."""
        used = [use.name for use in window.uses]
        others = [] if self._is_removing else [name for name in self._weights if name not in used]
        finished = window.finished(self._n_tensors) if self._is_removing else set()
        return [name for name in (*used, *others) if name not in self._here | finished]

    def _release(self, window: ShardWindow) -> None:
        if self._is_removing:
            needed = {use.name for use in window.uses} - window.finished(self._n_tensors)
            for name in self._here - needed:
                self._store.remove(name)
            self._here &= needed

    def _check_space(self, window: ShardWindow) -> None:
        """Report the peak use of the disk, and raise StorageError if that is not free."""
        n_here = sum(self._weights[name].n_bytes for name in self._here)
        held = window.peak_bytes(self._here) if self._is_removing else sum(f.n_bytes for f in self._weights.values())
        self._peak_bytes = held + self._n_planned_bytes
        self._report_progress()
        n_missing = self._peak_bytes - n_here - self._n_written_bytes
        folder = Path(self._request.output).parent
        free = shutil.disk_usage(folder).free
        if free < n_missing + _SPARE_BYTES:
            cause = f"That takes up to {n_missing / 1e9:.3f} GB more, and {folder} has {free / 1e9:.3f} GB free."
            raise StorageError(cause, "Free some space, or set LOCALLLM_DATA_DIR to another disk.")

    def _report_progress(self) -> None:
        name = Path(self._request.output).name
        self._report(Converting(name, self._n_planned_bytes, self._n_written_bytes, self._peak_bytes))


@dataclass(slots=True)
class CheckpointStore:
    """The files of `plan`; `found` has the hashes of those that exist, and `is_new` whether any was fetched."""

    puller: Puller
    downloader: Downloader
    staging: Staging
    plan: PullPlan
    is_new: bool = False
    found: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> list[RemoteFile]:
        """The shards; modules in folders of their own are fetched whole before."""
        return [file for file in self.plan.files if file.name.endswith(_WEIGHTS) and "/" not in file.name]

    async def exists(self, file: RemoteFile) -> bool:
        """Return whether the file exists and is right. Raises StorageError if another file has its name."""
        hashes = await self.puller.existing_hashes(self.staging, [file])
        if hashes is not None:
            self.found[file.name] = hashes[0]
        return hashes is not None

    async def fetch(self, name: str) -> None:
        """Fetch a file unless it exists, complete and with the right hash. Raises as `Downloader.fetch` does."""
        file = next(file for file in self.plan.files if file.name == name)
        if await self.exists(file):
            return
        self.found[name] = await self.downloader.fetch(file, self.staging.prepared_path(name))
        await asyncio.to_thread(self.staging.publish_file, name)
        self.puller.record(self.staging.target(name), file, self.found[name])
        self.is_new = True

    def remove(self, name: str) -> None:
        path = self.staging.target(name)
        with _changing(path):
            path.unlink(missing_ok=True)

    def hashes(self) -> tuple[str, ...]:
        """Return the hash of each file; for one that an earlier run has removed, the hub's."""
        return tuple(self.found.get(file.name, file.digest.hex) for file in self.plan.files)

    def begin(self, output: Path) -> None:
        """Write the mark of the conversion to `output`, unless an earlier run did. Raises StorageError."""
        mark = _mark(self.plan.folder, output)
        with _changing(mark):
            if not mark.exists():
                mark.write_text(_stamp(output), encoding="utf-8")

    def clear(self, output: Path, *, is_removing: bool) -> None:
        """Remove the temporary files of the conversion to `output`, the mark last. Raises StorageError."""
        for file in self.plan.files if is_removing else ():
            self.remove(file.name)
            remove_empty_folders(self.staging.target(file.name).parent)
        self.staging.discard()
        mark = _mark(self.plan.folder, output)
        with _changing(mark):
            for path in (*mark.parent.glob("*.head"), mark):
                path.unlink(missing_ok=True)


def was_converted(folder: Path, output: Path) -> bool:
    """Return whether an earlier run completed `output` from `folder` and was killed during its clean-up."""
    try:
        return _stamp(output) not in ("", read_regular(_mark(folder, output)).decode("utf-8"))
    except OSError:
        return False


def _mark(folder: Path, output: Path) -> Path:
    """Return the path of the mark, which has the stamp of `output` before the conversion."""
    return folder / FETCHING / f"{output.name}.begun"


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns}"


def _changing(path: Path) -> AbstractContextManager[None]:
    return explained(f"{path} cannot be written or removed", "Check its permissions.")
