"""The batches of OpenAI's Batch API, in `<data>/batches/`: each is a job of the service, `localllm batch`.

Owns the batch object, what its states mean for the job, and its output files. A batch outlives its service: the next
one goes on with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast
from uuid import uuid4

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.batch.requests import BatchFileError, BatchRequest, LineFault, each_request
from app.common.event_log import log_event
from app.options.jobs import BatchOptions
from app.protocol.codec import decode_checked, encode
from app.protocol.errors import JobDiedError
from app.protocol.job import Job
from app.service.api.batches.files import FileStore
from app.service.http.access_log import MeteredKeys
from app.service.http.errors import RefusedError
from app.service.http.guard import SERVICE, Caller
from app.service.jobs.manager import JobManager
from quantizer.system.errors import UsageError, UserError, redact_paths
from quantizer.system.files import (
    PRIVATE_FILE,
    explained,
    open_regular,
    private_folder,
    read_regular,
    remove_abandoned,
    remove_lock,
    sorted_glob,
    sync_folder,
    try_lock,
    write_atomically,
)

MAX_REQUESTS = 50_000
MAX_BATCHES = 1000
MAX_UNFINISHED = 100
KEPT_S = 90 * 24 * 60 * 60  # after its end
MOST_DEATHS = 3  # of a job's process, one after another, without a new answer between them
_CANCEL_INTERVAL_S = 0.5  # in which another service's wish to cancel is looked for
_ID = re.compile(r"batch_[0-9a-f]{32}")

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
_ENDED: tuple[BatchStatus, ...] = ("failed", "completed", "expired", "cancelled")


class BatchFault(TypedDict):
    """What is wrong with a line of the input, or with the whole batch."""

    code: str
    line: NonNegativeInt | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(TypedDict):
    total: NonNegativeInt
    completed: NonNegativeInt
    failed: NonNegativeInt


class BatchObject(TypedDict):
    """A batch, as OpenAI describes it."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: NonNegativeInt
    in_progress_at: NonNegativeInt | None
    expires_at: NonNegativeInt
    finalizing_at: NonNegativeInt | None
    completed_at: NonNegativeInt | None
    failed_at: NonNegativeInt | None
    expired_at: NonNegativeInt | None
    cancelling_at: NonNegativeInt | None
    cancelled_at: NonNegativeInt | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it is stored. `status` is that of a batch that has ended, and empty before. Times are seconds since
    1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: float
    expires_s: float
    output_expiry_s: int
    metadata: dict[str, str] | None = None
    owner: str = ""
    job_id: str = ""
    status: str = ""
    n_requests: int = 0
    n_answered: int = 0
    n_failed: int = 0
    output_file_id: str = ""
    error_file_id: str = ""
    faults: tuple[LineFault, ...] = ()
    begun_s: float | None = None
    cancelling_s: float | None = None
    finalizing_s: float | None = None
    ended_s: float | None = None

    def object(self, job: Job | None, counts: tuple[int, int] | None = None) -> BatchObject:
        """Return it as OpenAI describes it, with the progress of its `job`, or with `counts`: how many requests have an
        answer so far, and how many of these are errors."""
        status = cast("BatchStatus", self.status) or self._running_status(job)
        began_s = self.begun_s if job is None or self.status else job.started_s
        if counts is None:
            counts = self.n_answered, self.n_failed
            if job is not None and job.result and not self.status:
                counts = job.result.get("answered", 0), job.result.get("failed", 0)

        def at(seconds: float | None, *statuses: BatchStatus) -> int | None:
            return None if seconds is None or (statuses and status not in statuses) else int(seconds)

        faults = [BatchFault(code=f.code, line=f.number or None, message=f.message, param=f.param) for f in self.faults]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": faults} if faults else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": status,
            "output_file_id": self.output_file_id or None,
            "error_file_id": self.error_file_id or None,
            "created_at": int(self.created_s),
            "in_progress_at": at(began_s),
            "expires_at": int(self.expires_s),
            "finalizing_at": at(self.finalizing_s),
            "completed_at": at(self.ended_s, "completed"),
            "failed_at": at(self.ended_s, "failed"),
            "expired_at": at(self.ended_s, "expired"),
            "cancelling_at": at(self.cancelling_s),
            "cancelled_at": at(self.ended_s, "cancelled"),
            "request_counts": {"total": self.n_requests, "completed": counts[0] - counts[1], "failed": counts[1]},
            "metadata": self.metadata,
        }

    def _running_status(self, job: Job | None) -> BatchStatus:
        if self.cancelling_s is not None:
            return "cancelling"
        if job is not None and job.state in ("done", "failed", "cancelled") and not _has_died(job):
            return "finalizing"
        return "validating" if job is not None and job.state == "queued" else "in_progress"


def _has_died(job: Job) -> bool:
    """Whether the job's process was killed, or ended otherwise without a word: another one may get further."""
    return job.state == "failed" and job.error is not None and isinstance(job.error.error(), JobDiedError)


class BatchStore:
    """The batches of a data folder, which several services may use, in files of their own."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s

    def all(self) -> list[Batch]:
        """Return the batches, oldest first, without those that ended long ago, which are removed."""
        with explained(f"The batches in {self._folder} cannot be read", "Check its permissions."):
            remove_abandoned(self._folder)
            found = []
            for path in sorted_glob(self._folder, "*.json"):
                batch = self._read(path)
                if batch is None:
                    continue
                if batch.ended_s is not None and batch.ended_s + KEPT_S < self._now_s():
                    path.unlink(missing_ok=True)
                else:
                    found.append(batch)
            return sorted(found, key=lambda batch: (batch.created_s, batch.id))

    def find(self, batch_id: str, caller: Caller = SERVICE) -> Batch:
        """Return a batch. Raises RefusedError (404) for none, and for another one's."""
        batch = self._read(self._folder / f"{batch_id}.json") if _ID.fullmatch(batch_id) else None
        if batch is None or not caller.sees(batch.owner):
            raise RefusedError(
                404, "not_found", f"There is no batch {batch_id[:80]!r}.", "GET /v1/batches lists the batches."
            )
        return batch

    def save(self, batch: Batch) -> Batch:
        with explained(f"The batch cannot be saved in {self._folder}", "Check its disk."):
            path = private_folder(self._folder) / f"{batch.id}.json"
            write_atomically(path, json.dumps(encode(batch)), sync=True, mode=PRIVATE_FILE)
        return batch

    def answers_path(self, batch_id: str) -> Path:
        """Return where the job writes its answers."""
        return self._folder / f"{batch_id}.jsonl"

    def answered_at(self, path: Path) -> Batch | None:
        """Return the batch whose answers are at `path`, None for a file of somebody else."""
        return self._read(path.with_suffix(".json")) if path.parent == self._folder else None

    def ask_to_cancel(self, batch_id: str) -> None:
        """Leave word that a batch is to be cancelled, for whichever service runs it: that alone writes the batch."""
        with explained(f"The batch cannot be cancelled in {self._folder}", "Check its disk."):
            self._word_path(batch_id).touch(PRIVATE_FILE)
            sync_folder(self._folder)

    def asked_to_cancel_s(self, batch_id: str) -> float | None:
        with suppress(OSError):
            return self._word_path(batch_id).stat().st_mtime
        return None

    def remove_traces(self, batch_id: str) -> None:
        """Remove what only a batch that runs needs."""
        for path in (self.answers_path(batch_id), self._word_path(batch_id)):
            with explained(f"{path.name} cannot be removed", "Check its folder."):
                path.unlink(missing_ok=True)

    def _word_path(self, batch_id: str) -> Path:
        return self._folder / f"{batch_id}.cancel"

    def _read(self, path: Path) -> Batch | None:
        try:
            batch = decode_checked(Batch, json.loads(read_regular(path)))
        except (FileNotFoundError, ValueError, RecursionError):  # none, damaged, or of another version
            return None
        if batch.id != path.stem or not _ID.fullmatch(batch.id):
            return None
        if not batch.status and batch.cancelling_s is None:
            batch = replace(batch, cancelling_s=self.asked_to_cancel_s(batch.id))
        return batch


@dataclass(slots=True)
class _Count:
    """How many answers a file has that another process appends to, and how many are errors; it is read on from where it
    was read to."""

    n_bytes: int = 0
    n_answered: int = 0
    n_failed: int = 0

    def of(self, path: Path) -> tuple[int, int]:
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError), open_regular(path) as file:
            if path.stat().st_size < self.n_bytes:  # begun anew
                self.n_bytes = self.n_answered = self.n_failed = 0
            file.seek(self.n_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.n_failed += json.loads(line)["error"] is not None
                self.n_answered += 1
                self.n_bytes += len(line)
        return self.n_answered, self.n_failed


@dataclass(slots=True)
class Batches:
    """Runs the batches of `store` as jobs, which ask this service with one of `keys`. Several services may share a data
    folder: that which runs a batch holds its lock."""

    store: BatchStore
    files: FileStore
    jobs: JobManager
    keys: MeteredKeys = field(default_factory=MeteredKeys)
    now_s: Callable[[], float] = time.time
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _counts: dict[str, _Count] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.jobs.batch_key = self.job_key

    @contextmanager
    def job_key(self, options: BatchOptions) -> Iterator[str]:
        """Give the key by which a job asks this service. That of a batch which somebody made with a key is a temporary
        one: its requests see what that key sees, not all that the service's own key does."""
        batch = self.store.answered_at(Path(options.output))
        if batch is None or not batch.owner:
            yield self.jobs.settings.api_key
            return
        with self.keys.open(batch.owner) as key:
            yield key.secret

    async def create(
        self,
        input_file_id: str,
        endpoint: str,
        window: str,
        window_s: float,
        output_expiry_s: int,
        metadata: dict[str, str] | None,
        caller: Caller = SERVICE,
    ) -> BatchObject:
        """Check the input, which may be wrong, and start its job. Raises RefusedError for an unknown file, and where
        too many batches are there."""
        stored = self.files.find(input_file_id, caller)
        known = self.store.all()
        n_unfinished = sum(not batch.status for batch in known)
        if len(known) >= MAX_BATCHES or n_unfinished >= MAX_UNFINISHED:
            cause = f"There are {len(known)} batches already, {n_unfinished} of them unfinished."
            raise RefusedError(429, "too_many_batches", cause, "Wait until some have ended, or cancel one.")
        created_s = max([self.now_s(), *(batch.created_s + 1e-3 for batch in known)])  # listed in the order of creation
        batch = Batch(
            id=f"batch_{uuid4().hex}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=window,
            created_s=created_s,
            expires_s=created_s + window_s,
            output_expiry_s=output_expiry_s,
            metadata=metadata,
            owner=caller.owner,
        )
        faults: tuple[LineFault, ...] = ()
        try:
            n_requests = await asyncio.to_thread(lambda: sum(1 for _ in self._requests(batch, stored["filename"])))
            if n_requests > MAX_REQUESTS:
                faults = (LineFault(0, "too_many_requests", f"A batch has at most {MAX_REQUESTS:,} requests."),)
        except BatchFileError as error:
            faults = error.faults
        except UsageError as error:
            faults = (LineFault(0, "empty_file", error.cause),)
        if faults:
            batch = replace(batch, status="failed", faults=faults, ended_s=self.now_s())
            return self.store.save(batch).object(None)
        batch = self.store.save(replace(batch, n_requests=n_requests))
        self._begin(batch)
        return {**batch.object(None), "status": "validating"}

    async def listed(self, caller: Caller = SERVICE) -> list[BatchObject]:
        """Return the batches that `caller` sees, oldest first; one whose service is gone goes on here."""
        batches = await asyncio.to_thread(self.store.all)
        self.resume(batches)
        return [await self._seen(batch) for batch in batches if caller.sees(batch.owner)]

    async def get(self, batch_id: str, caller: Caller = SERVICE) -> BatchObject:
        """Return a batch. Raises as `BatchStore.find`."""
        batch = self.store.find(batch_id, caller)
        self.resume([batch])
        return await self._seen(batch)

    async def cancel(self, batch_id: str, caller: Caller = SERVICE) -> BatchObject:
        """Begin to cancel a batch, whichever service runs it; its answers so far stay. Raises RefusedError for one that
        has ended."""
        async with self._changing:
            if not self.store.find(batch_id, caller).status:
                self.store.ask_to_cancel(batch_id)
            batch = self.store.find(batch_id)  # again: another service may have ended it before it saw that
            if batch.status:
                self.store.remove_traces(batch_id)
                raise RefusedError(400, "batch_has_ended", f"The batch is {batch.status} already.", "Start a new one.")
            if job := self._job(batch):
                self.jobs.cancel(job.id)
            self.resume([batch])
            return await self._seen(batch)

    async def _seen(self, batch: Batch) -> BatchObject:
        """Return a batch with its progress: that of its job, or of its answers where another service has the job, or
        its process does not say yet what the one before it did."""
        job = self._job(batch)
        if batch.status or (job is not None and job.result):
            self._counts.pop(batch.id, None)
            return batch.object(job)
        count = self._counts.setdefault(batch.id, _Count())
        return batch.object(job, await asyncio.to_thread(count.of, self.store.answers_path(batch.id)))

    def resume(self, batches: Iterable[Batch] | None = None) -> None:
        """Go on with the batches that have not ended and that nobody runs."""
        for batch in self.store.all() if batches is None else batches:
            if batch.status and batches is None:  # a kill may have come before they were removed
                self.store.remove_traces(batch.id)
            if not batch.status and batch.id not in self._tasks:
                self._begin(batch)

    def is_input(self, file_id: str) -> bool:
        """Whether a batch that has not ended needs the file."""
        return any(batch.input_file_id == file_id and not batch.status for batch in self.store.all())

    async def close(self) -> None:
        """Let go of the batches, whose jobs end with the service."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, batch: Batch) -> None:
        async def run() -> None:
            try:
                await self._run(batch)
            except UserError as error:
                log_event("service", f"{batch.id}: {error}")
            finally:
                del self._tasks[batch.id]

        self._tasks[batch.id] = asyncio.create_task(run())

    async def _run(self, batch: Batch) -> None:
        with explained("A batch cannot be locked", "Check the data folder."):
            lock = await asyncio.to_thread(try_lock, self.store.answers_path(batch.id).with_suffix(".lock"))
        if lock is None:
            return
        try:
            batch = self.store.find(batch.id)
            if batch.status:  # another service has ended it since
                return
            try:
                job = await self._started(batch)
            except RefusedError as error:
                if error.status != 404:
                    raise
                faults = (LineFault(0, "input_file_not_found", error.cause),)
                self.store.save(replace(batch, status="failed", faults=faults, ended_s=self.now_s()))
                return
            is_late = False
            cancelling = asyncio.create_task(self._cancel_when_asked(batch.id, job.id))
            try:
                async with asyncio.timeout(max(0.0, batch.expires_s - self.now_s())):
                    job = await self._to_end(batch.id, job)
            except TimeoutError:
                is_late = True
                self.jobs.cancel(job.id)
                job = await self._end_of(job)
            finally:
                cancelling.cancel()
            batch = self.store.find(batch.id)
            if job.has_ended and (job.state != "interrupted" or batch.cancelling_s is not None):
                async with self._changing:
                    await asyncio.to_thread(self._finish, batch.id, job, is_late=is_late)
                if job.state != "done":  # its answers are in files now: it cannot be retried
                    self.jobs.forget(job.id)
        finally:
            remove_lock(lock)

    async def _started(self, batch: Batch) -> Job:
        """Return the job of a batch, started or retried if need be."""
        job = self._job(batch)
        if job is None:
            options = BatchOptions(
                input=str(self.files.path_of(batch.input_file_id)), output=str(self.store.answers_path(batch.id))
            )
            job = await self.jobs.start(options)
            async with self._changing:
                self.store.save(replace(self.store.find(batch.id), job_id=job.id, begun_s=self.now_s()))
        if job.state == "interrupted" and batch.cancelling_s is None:
            job = await self.jobs.retry(job.id)
        return job

    async def _cancel_when_asked(self, batch_id: str, job_id: str) -> None:
        """Cancel the job once some service was asked to: the others know this one's files only."""
        while True:
            if self.store.asked_to_cancel_s(batch_id) is not None:
                with suppress(RefusedError):  # it is forgotten
                    self.jobs.cancel(job_id)
                return
            await asyncio.sleep(_CANCEL_INTERVAL_S)

    async def _to_end(self, batch_id: str, job: Job) -> Job:
        """Return the job of a batch as it ended. One whose process was killed goes on with what is unanswered, until
        several have died that answered nothing."""
        path, n_answered, n_deaths = self.store.answers_path(batch_id), 0, 0
        while True:
            job = await self._end_of(job)
            if not _has_died(job) or job.error is None:
                return job
            n_before, (n_answered, _) = n_answered, await asyncio.to_thread(_Count().of, path)
            n_deaths = 1 if n_answered > n_before else n_deaths + 1
            if n_deaths > MOST_DEATHS or self.store.find(batch_id).cancelling_s is not None:
                return job
            log_event("service", f"{batch_id} goes on after {n_answered} answers. {job.error.cause}")
            job = await self.jobs.retry(job.id)

    async def _end_of(self, job: Job) -> Job:
        async for changed in self.jobs.watch_one(job.id):
            job = changed
        return job

    def _job(self, batch: Batch) -> Job | None:
        return next((job for job in self.jobs.all if job.id == batch.job_id), None)

    def _requests(self, batch: Batch, name: str) -> Iterator[BatchRequest]:
        with open_regular(self.files.path_of(batch.input_file_id)) as file:
            for _, request in each_request(name, file, url=batch.endpoint):
                yield request

    def _finish(self, batch_id: str, job: Job, *, is_late: bool) -> None:
        """Make the files of a batch whose job has ended; done again after a kill, it makes the same ones."""
        batch = replace(self.store.find(batch_id), begun_s=job.started_s, finalizing_s=self.now_s())
        path = self.store.answers_path(batch_id)
        answered, n_failed = set[str](), 0
        for line in _lines(path):
            fields = json.loads(line)
            answered.add(fields["custom_id"])
            n_failed += fields["error"] is not None
        late = [] if not is_late else [r for r in self._requests(batch, "") if r.custom_id not in answered]
        n_answered, n_failed = len(answered) + len(late), n_failed + len(late)
        ids = [f"file-{hashlib.sha256(f'{batch_id} {what}'.encode()).hexdigest()[:32]}" for what in ("output", "error")]
        good = (line for line in _lines(path) if json.loads(line)["error"] is None)
        wrong = itertools.chain((line for line in _lines(path) if json.loads(line)["error"]), map(_late_line, late))
        for file_id, name, n_lines, lines in (
            (ids[0], "output", n_answered - n_failed, good),
            (ids[1], "error", n_failed, wrong),
        ):
            if n_lines:
                file_name = f"{batch_id}_{name}.jsonl"
                self.files.write(file_id, file_name, "batch_output", batch.output_expiry_s, lines, batch.owner)
        status, faults = "completed", tuple[LineFault, ...]()
        if job.state != "done":
            status = "expired" if is_late else "cancelled"
            was_cancelled = batch.cancelling_s is not None and _has_died(job)
            if job.state == "failed" and not is_late and not was_cancelled:
                cause = redact_paths(job.error.cause) if job.error else "The job failed."
                status, faults = "failed", (LineFault(0, "job_failed", cause),)
        self.store.save(
            replace(
                batch,
                status=status,
                faults=faults,
                n_answered=n_answered,
                n_failed=n_failed,
                output_file_id=ids[0] if n_answered > n_failed else "",
                error_file_id=ids[1] if n_failed else "",
                ended_s=self.now_s(),
            )
        )
        self.store.remove_traces(batch_id)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of the answers: a kill may have cut off the last one."""
    with suppress(FileNotFoundError), open_regular(path) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _late_line(request: BatchRequest) -> bytes:
    error = {"code": "batch_expired", "message": "The completion window ended before this request was answered."}
    line = {"id": request.request_id, "custom_id": request.custom_id, "response": None, "error": error}
    return json.dumps(line).encode() + b"\n"
