"""Which of the jobs that wait may start. Pure.

Owns how many share what; a job keeps its place: one that needs what an earlier one waits for waits behind it.

The jobs of the service: what waits, what runs, what ended.

Owns the list and the order in which jobs start. Each ends with a result or an error whatever dies; who watches it may
leave. Knows nothing of processes or of HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from app.protocol.job import Job
from app.service.http.errors import RefusedError
from app.service.jobs.arguments import Arguments, Resource
from app.service.jobs.command import arguments_of, command_of
from app.service.jobs.run import JobRun, Runner
from app.service.jobs.store import JobStore
from app.service.jobs.subscriptions import Subscriptions
from app.settings.settings import Settings
from quantizer.errors import ErrorInfo, StorageError
from quantizer.process import python_command

__all__ = ["LIMITS", "JobManager", "startable"]

# Two downloads share a line well; two conversions or measurements take each other's time, and spoil the figures.
LIMITS: Mapping[Resource, int] = {"network": 2, "machine": 1}


def startable(
    waiting: Iterable[tuple[str, frozenset[Resource]]],
    running: Iterable[frozenset[Resource]],
    limits: Mapping[Resource, int] = LIMITS,
) -> list[str]:
    """Return which of the `waiting`, in order, each with what it takes to itself, start beside the `running` ones."""
    taken = Counter(slot for slots in running for slot in slots)
    found: list[str] = []
    for job_id, slots in waiting:
        if all(taken[slot] < limits[slot] for slot in slots):
            found.append(job_id)
        taken.update(slots)  # of one that waits too: what comes later must not overtake it
    return found


MAX_ENDED = 100
MAX_WAITING = 200
_SAVED_EVERY_S = 5.0  # while a job runs: how far it was is of little use


class JobManager:
    """Runs what it is given, a few jobs at a time, with `command` (see `Runner`). `on_work` is called when one starts,
    `on_idle` when nothing runs or waits any more and nobody watches."""

    def __init__(
        self,
        settings: Settings,
        on_work: Callable[[], None] = lambda: None,
        on_idle: Callable[[], None] = lambda: None,
        command: Sequence[str] = python_command("app.cli.job_process"),
    ) -> None:
        self.settings = settings
        self._runner = Runner(settings, tuple(command))
        self._on_work = on_work
        self._on_rest = on_idle
        self._store = JobStore(settings.data_dir / "jobs")
        self._jobs = {job.id: job for job in self._store.load()}
        self._waiting: dict[str, Arguments] = {}
        self._runs: dict[str, JobRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._saved_s: dict[str, float] = {}
        self._watching = Subscriptions(self._consider_rest)
        for job in [job for job in self.all if not job.has_ended]:
            self._keep(_interrupted(job))

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job, oldest first."""
        return tuple(self._jobs.values())

    @property
    def is_computing(self) -> bool:
        """Whether a job keeps the machine busy, so that what is timed meanwhile would say little."""
        return any("machine" in run.arguments.slots for run in self._runs.values())

    @property
    def are_idle(self) -> bool:
        """True when nothing runs or waits, and nobody watches."""
        return not (self._runs or self._waiting or len(self._watching))

    def find(self, job_id: str) -> Job:
        """Return a job as it stands. Raises RefusedError."""
        if job_id not in self._jobs:
            raise RefusedError(404, "job_not_found", f"There is no job {job_id[:80]!r}.", "List the jobs.")
        return self._jobs[job_id]

    async def start(self, arguments: Arguments) -> Job:
        """Put a job into the queue. Raises RequestError for what cannot be done, RefusedError where too many wait."""
        self._check_queue()
        await asyncio.to_thread(command_of, arguments, self.settings)
        job = Job(
            id=secrets.token_hex(4),
            kind=arguments.kind,
            title=arguments.title,
            arguments=arguments.model_dump(mode="json", exclude_defaults=True),
            created_s=time.time(),
        )
        self._store.save(job)
        self._enqueue(job, arguments)
        return self._jobs[job.id]

    async def retry(self, job_id: str) -> Job:
        """Put a job that ended into the queue again, behind all others. Raises as `find` and `start` do."""
        job = self.find(job_id)
        self._check_has_ended(job)
        self._check_queue()
        try:
            arguments = arguments_of(job.kind, job.arguments)
        except (ValueError, KeyError) as error:
            raise RefusedError(409, "not_repeatable", "Another version started this job.", "Start it anew.") from error
        self._enqueue(replace(job, state="queued", error=None, ended_s=None, message=""), arguments)
        return self._jobs[job_id]

    def cancel(self, job_id: str) -> Job:
        """Take a job from the queue, or let it end; one that has ended stays as it is. Raises RefusedError."""
        job = self.find(job_id)
        if job_id in self._runs:
            self._runs[job_id].cancel()
        elif self._waiting.pop(job_id, None):
            self._put(replace(job, state="cancelled", ended_s=time.time()))
            self._fill()
        return self._jobs[job_id]

    def forget(self, job_id: str) -> Job:
        """Remove a job that has ended. Raises RefusedError, StorageError."""
        job = self.find(job_id)
        self._check_has_ended(job)
        return self._remove(job)

    def log(self, job_id: str) -> str:
        """Return what a job has said. Raises RefusedError, StorageError."""
        try:
            return self._store.log(self.find(job_id).id).read()
        except OSError as error:
            raise StorageError(f"The job's log cannot be read: {error.strerror}.", "Check the disk.") from error

    async def watch(self) -> AsyncGenerator[Job, None]:
        """Yield every job, oldest first, then each as it changes, until the service ends."""
        async with aclosing(self._watching.watch(self.all)) as jobs:
            async for job in jobs:
                yield job

    async def watch_one(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job as it stands and as it changes, until it or the service has ended. Raises RefusedError."""
        first = self.find(job_id)
        async with aclosing(self._watching.watch([first], lambda job: job.id == job_id)) as jobs:
            async for job in jobs:
                yield job
                if job.has_ended:
                    return

    def close_subscriptions(self) -> None:
        """Let all watchers go: the service takes no more requests."""
        self._watching.end()

    async def close(self) -> None:
        """Interrupt what runs or waits; it may be tried again when the service is back."""
        for job_id in tuple(self._waiting):
            del self._waiting[job_id]
            self._put(_interrupted(self._jobs[job_id]))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job_id in self._runs:  # those whose task had not begun
            self._put(_interrupted(self._jobs[job_id]))
        self._watching.end()
        self._store.close()

    def _enqueue(self, job: Job, arguments: Arguments) -> None:
        self._waiting[job.id] = arguments
        self._put(job)
        self._fill()

    def _fill(self) -> None:
        """Start what may start, or see that nothing is left to do."""
        waiting = ((job_id, arguments.slots) for job_id, arguments in self._waiting.items())
        for job_id in startable(waiting, [run.arguments.slots for run in self._runs.values()]):
            job, arguments, log = self._jobs[job_id], self._waiting.pop(job_id), self._store.log(job_id)
            self._runs[job_id] = JobRun(job, arguments, self._runner, log, self._put)
            self._tasks[job_id] = asyncio.create_task(self._run(job_id))
            self._on_work()
        self._consider_rest()

    async def _run(self, job_id: str) -> None:
        ended = await self._runs[job_id].to_end()
        del self._runs[job_id], self._tasks[job_id]
        if ended.state == "interrupted":
            self._put(_interrupted(ended))
            return
        self._put(ended)
        self._fill()

    def _put(self, job: Job) -> None:
        """Let `job` stand as given, here, with all who watch and on the disk."""
        is_news = self._jobs.get(job.id, job).state != job.state or job.state != "running"
        self._jobs[job.id] = job
        self._watching.tell(job)
        if is_news or time.monotonic() - self._saved_s.get(job.id, 0.0) > _SAVED_EVERY_S:
            self._keep(job)
        if job.has_ended:
            self._saved_s.pop(job.id, None)
            self._forget_oldest()

    def _keep(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._saved_s[job.id] = time.monotonic()
        try:
            self._store.save(job)
        except StorageError as error:  # what it does goes on; that it may be forgotten is said with it
            self._jobs[job.id] = replace(job, message=str(error))

    def _forget_oldest(self) -> None:
        ended = [job for job in self._jobs.values() if job.has_ended]
        for job in ended[:-MAX_ENDED]:
            with suppress(StorageError):  # it stays, and is tried with the next one
                self._remove(job)

    def _remove(self, job: Job) -> Job:
        self._store.remove(job.id)
        del self._jobs[job.id]
        forgotten = replace(job, state="forgotten")
        self._watching.tell(forgotten)
        return forgotten

    def _consider_rest(self) -> None:
        if self.are_idle:
            self._on_rest()

    def _check_queue(self) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise RefusedError(429, "too_many_jobs", f"{MAX_WAITING} jobs wait already.", "Wait, or cancel some.")

    def _check_has_ended(self, job: Job) -> None:
        if not job.has_ended:
            raise RefusedError(409, "job_not_ended", f"The job {job.id} is {job.state}.", "Cancel it first.")


def _interrupted(job: Job) -> Job:
    cause = ErrorInfo("ServiceError", "The service ended before the job did.", "Retry it: it goes on from there.")
    return replace(job, state="interrupted", error=cause, ended_s=time.time(), bytes_per_s=None, remaining_s=None)
