"""The jobs of the service: queued, running, ended, and the subscribers of their list.

Each job ends with a result or an error, whatever process dies.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from app.common.event_log import log_event
from app.options.jobs import JobOptions, QuantizeOptions, given
from app.protocol.job import Job
from app.service.http.errors import RefusedError
from app.service.jobs.arguments import Resource, command_of, is_background, options_of, resources_of, title_of
from app.service.jobs.run import BatchKey, JobRun, JobStore
from app.settings.settings import Settings
from quantizer.system.errors import ErrorInfo, StorageError, UserError
from quantizer.system.files import explained
from quantizer.system.process import python_command

MAX_ENDED = 100
MAX_WAITING = 200
INTERVAL_S = 0.1  # between two updates of a subscriber
_TICK_S = 1e-3  # between jobs that a clock would put in the wrong order
_SAVE_INTERVAL_S = 5.0  # for progress, which matters little after a restart
_ADOPT_INTERVAL_S = 0.5
_COPY_THREADS_SHARE = 4  # of the processors: answers need the others

# Two downloads share a line well; two conversions or measurements take each other's time, and spoil the figures.
# A batch has all slots of the engine, so that the next one waits.
LIMITS: Mapping[Resource, int] = {"network": 2, "machine": 1, "engine": 1}


def startable(
    waiting: Iterable[tuple[str, frozenset[Resource]]],
    running: Iterable[frozenset[Resource]],
    limits: Mapping[Resource, int] = LIMITS,
) -> list[str]:
    """Return which of `waiting`, in order and with the resources they need, can start beside those `running`. A job
    keeps its place: one that needs a resource for which an earlier one waits, waits behind it."""
    taken = Counter(resource for resources in running for resource in resources)
    found: list[str] = []
    for job_id, resources in waiting:
        if all(taken[resource] < limits[resource] for resource in resources):
            found.append(job_id)
        taken.update(resources)
    return found


class JobManager:
    """Runs jobs, a few at a time, by `command` (see `JobRun`, also for `batch_key`, by default that of the settings).
    `on_work` is called when one starts, `on_idle` when none runs or waits any more and nobody is subscribed."""

    def __init__(
        self,
        settings: Settings,
        on_work: Callable[[], None] = lambda: None,
        on_idle: Callable[[], None] = lambda: None,
        command: Sequence[str] = python_command("app.cli.job_process"),
    ) -> None:
        self.settings = settings
        self.batch_key: BatchKey = lambda _: nullcontext(settings.api_key)
        self._command = command
        self._on_work = on_work
        self._on_idle = on_idle
        self._store = JobStore(settings.data_dir / "jobs")
        self._jobs = {job.id: job for job in self._store.load()}
        self._waiting: dict[str, JobOptions] = {}
        self._runs: dict[str, JobRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._yielding: set[str] = set()  # that were interrupted for others, and go on behind these
        self._saved_s: dict[str, float] = {}
        self._copies: dict[QuantizeOptions, asyncio.Task[None]] = {}  # that were wanted
        self._subscriptions = Subscriptions(self._notify_if_idle)
        for job in [job for job in self.all if not job.has_ended]:
            self._save(_interrupted(job))

    async def adopt(self) -> None:
        """Add the unfinished jobs of services that were still running when this one started, once those have ended. An
        app that is started again right after it was killed has a service of its own while the previous one still waits
        for its jobs to end."""
        while self._store.is_shared:
            await asyncio.sleep(_ADOPT_INTERVAL_S)
            known = set(self._jobs)  # also what is forgotten while the files are read
            found = [job for job in await asyncio.to_thread(self._store.load) if job.id not in known]
            for job in found:
                self._update(job if job.has_ended else _interrupted(job))
            if found:
                self._jobs = {job.id: job for job in sorted(self.all, key=lambda job: (job.created_s, job.id))}

    @property
    def all(self) -> tuple[Job, ...]:
        return tuple(self._jobs.values())

    @property
    def is_computing(self) -> bool:
        """Whether a job keeps the machine busy, which would spoil measurements."""
        return any("machine" in resources_of(run.options) for run in self._runs.values())

    @property
    def is_idle(self) -> bool:
        return not (self._runs or self._waiting or len(self._subscriptions))

    def find(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise RefusedError(404, "job_not_found", f"There is no job {job_id[:80]!r}.", "List the jobs.")
        return self._jobs[job_id]

    async def start(self, options: JobOptions) -> Job:
        """Queue a new job. Raises RequestError for invalid arguments, RefusedError where too many wait."""
        self._check_queue()
        await asyncio.to_thread(command_of, options, self.settings)
        job = Job(
            id=secrets.token_hex(4),
            kind=options.kind,
            title=title_of(options),
            arguments=given(options),
            # Not before any other: jobs are listed by it, and the clock may have been put back.
            created_s=max([time.time(), *(each.created_s + _TICK_S for each in self._jobs.values())]),
        )
        self._store.save(job)
        self._enqueue(job, options)
        return self._jobs[job.id]

    def start_copy(self, model: Path, file_type: str) -> None:
        """Queue a low-bit copy of `model` that drafts for it, behind all other jobs: once while this service runs, and
        not where one waits, runs, or was cancelled. What prevents it is logged: nobody asked for the job."""
        threads = max(1, (os.cpu_count() or 1) // _COPY_THREADS_SHARE)
        options = QuantizeOptions(source=str(model), file_type=file_type, as_draft=True, threads=threads)
        alike = [job.state for job in self.all if (job.kind, job.arguments) == (options.kind, given(options))]
        if options in self._copies or {"queued", "running", "cancelled"} & set(alike):
            return

        async def start() -> None:
            try:
                await self.start(options)
            except UserError as error:
                log_event("service", f"No copy of {model.name} is made to draft: {error}")

        self._copies[options] = asyncio.create_task(start())

    async def retry(self, job_id: str) -> Job:
        """Queue a job again that ended without a result, behind all others. Raises as `find` and `start` do."""
        job = self.find(job_id)
        self._check_has_ended(job)
        if job.state == "done":  # its result would be lost, and a quantization fails: its file is there
            raise RefusedError(409, "job_is_done", f"{job.title} is done.", "Start a new job to do it again.")
        self._check_queue()
        try:
            options = options_of(job.kind, job.arguments)
        except (ValueError, KeyError) as error:
            raise RefusedError(409, "not_repeatable", "Another version started this job.", "Start it anew.") from error
        self._enqueue(replace(job, state="queued", error=None, ended_s=None, message=""), options)
        return self._jobs[job_id]

    def cancel(self, job_id: str) -> Job:
        """Cancel a queued or running job; one that has ended stays as it is. Raises RefusedError."""
        job = self.find(job_id)
        if job_id in self._runs:
            self._yielding.discard(job_id)
            self._runs[job_id].cancel()
        elif self._waiting.pop(job_id, None):
            self._update(replace(job, state="cancelled", ended_s=time.time()))
            self._start_waiting()
        return self._jobs[job_id]

    def forget(self, job_id: str) -> Job:
        job = self.find(job_id)
        self._check_has_ended(job)
        return self._remove(job)

    def log(self, job_id: str) -> str:
        with explained("The job's log cannot be read", "Check the disk."):
            return self._store.log(self.find(job_id).id).read()

    def watch(self) -> AsyncGenerator[Job, None]:
        """Yield every job, oldest first, then each as it changes, until the service ends."""
        return self._subscriptions.subscribe(self.all)

    async def watch_one(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job, also as it changes, until it or the service has ended. Raises RefusedError."""
        first = self.find(job_id)
        async with aclosing(self._subscriptions.subscribe([first], lambda job: job.id == job_id)) as jobs:
            async for job in jobs:
                yield job
                if job.has_ended:
                    return

    def close_subscriptions(self) -> None:
        self._subscriptions.close()

    async def close(self) -> None:
        """Interrupt running and waiting jobs; they can be retried when the service is back."""
        for job_id in tuple(self._waiting):
            del self._waiting[job_id]
            self._update(_interrupted(self._jobs[job_id]))
        tasks = [*self._copies.values(), *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job_id in self._runs:  # whose task had not begun
            self._update(_interrupted(self._jobs[job_id]))
        self._subscriptions.close()
        self._store.close()

    def _enqueue(self, job: Job, options: JobOptions) -> None:
        self._waiting[job.id] = options
        self._update(job)
        self._start_waiting()

    def _start_waiting(self) -> None:
        behind = sorted(self._waiting.items(), key=lambda item: is_background(item[1]))  # in order otherwise
        waiting = ((job_id, resources_of(options)) for job_id, options in behind)
        for job_id in startable(waiting, [resources_of(run.options) for run in self._runs.values()]):
            job, options, log = self._jobs[job_id], self._waiting.pop(job_id), self._store.log(job_id)
            self._runs[job_id] = JobRun(job, options, self.settings, self._command, log, self._update, self.batch_key)
            self._tasks[job_id] = asyncio.create_task(self._run(job_id))
            self._on_work()
        self._interrupt_background()
        self._notify_if_idle()

    def _interrupt_background(self) -> None:
        """Interrupt the jobs nobody waits for, where one that somebody waits for needs what they have."""
        wanted = {each for job in self._waiting.values() if not is_background(job) for each in resources_of(job)}
        for job_id, run in self._runs.items():
            if not run.is_cancelled and is_background(run.options) and wanted & resources_of(run.options):
                self._yielding.add(job_id)
                run.cancel()

    async def _run(self, job_id: str) -> None:
        ended = await self._runs[job_id].to_end()
        options = self._runs.pop(job_id).options
        del self._tasks[job_id]
        yields = job_id in self._yielding
        self._yielding.discard(job_id)
        if ended.state == "interrupted":
            self._update(_interrupted(ended))
            return
        if yields and ended.state == "cancelled":  # else it ended first
            self._enqueue(replace(ended, state="queued", ended_s=None, message="Goes on after other jobs"), options)
            return
        self._update(ended)
        self._start_waiting()

    def _update(self, job: Job) -> None:
        """Replace `job` here, with subscribers and, unless only its progress changed a moment ago, on disk."""
        is_important = self._jobs.get(job.id, job).state != job.state or job.state != "running"
        self._jobs[job.id] = job
        self._subscriptions.publish(job)
        if is_important or time.monotonic() - self._saved_s.get(job.id, 0.0) > _SAVE_INTERVAL_S:
            self._save(job)
        if job.has_ended:
            self._saved_s.pop(job.id, None)
            ended = [each for each in self._jobs.values() if each.has_ended]
            for oldest in ended[:-MAX_ENDED]:
                with suppress(StorageError):  # retried with the next one
                    self._remove(oldest)

    def _save(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._saved_s[job.id] = time.monotonic()
        try:
            self._store.save(job)
        except StorageError as error:  # it goes on, with a message that a restart may lose it
            self._jobs[job.id] = replace(job, message=str(error))

    def _remove(self, job: Job) -> Job:
        self._store.remove(job.id)
        del self._jobs[job.id]
        forgotten = replace(job, state="forgotten")
        self._subscriptions.publish(forgotten)
        return forgotten

    def _notify_if_idle(self) -> None:
        if self.is_idle:
            self._on_idle()

    def _check_queue(self) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise RefusedError(429, "too_many_jobs", f"{MAX_WAITING} jobs wait already.", "Wait, or cancel some.")

    def _check_has_ended(self, job: Job) -> None:
        if not job.has_ended:
            raise RefusedError(409, "job_not_ended", f"The job {job.id} is {job.state}.", "Cancel it first.")


def _interrupted(job: Job) -> Job:
    cause = ErrorInfo("ServiceError", "The service ended before the job did.", "Retry it: it goes on from there.")
    return replace(job, state="interrupted", error=cause, ended_s=time.time(), bytes_per_s=None, remaining_s=None)


class _Subscriber:
    """The newest version of each job that one subscriber has not received yet."""

    def __init__(self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool]) -> None:
        self.is_wanted = is_wanted
        self.unsent = {job.id: job for job in jobs if is_wanted(job)}
        self.has_news = asyncio.Event()
        self.has_news.set()


class Subscriptions:
    """All subscribers, of which a slow one, or one that leaves, delays nobody; `on_empty` is called when the last has
    left."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._subscribers: set[_Subscriber] = set()
        self._on_empty = on_empty
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._subscribers)

    def publish(self, job: Job) -> None:
        for subscriber in self._subscribers:
            if subscriber.is_wanted(job):
                subscriber.unsent[job.id] = job
                subscriber.has_news.set()

    async def subscribe(
        self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool] = lambda _: True
    ) -> AsyncGenerator[Job, None]:
        """Yield the wanted ones of `jobs`, then each as it changes, until the subscriptions are closed."""
        subscriber = _Subscriber(jobs, is_wanted)
        self._subscribers.add(subscriber)
        try:
            while True:
                await subscriber.has_news.wait()
                subscriber.has_news.clear()
                news, subscriber.unsent = subscriber.unsent, {}
                for job in news.values():
                    yield job
                if self._is_closed and not subscriber.unsent:
                    return
                await asyncio.sleep(INTERVAL_S)
        finally:
            self._subscribers.remove(subscriber)
            if not self._subscribers:
                self._on_empty()

    def close(self) -> None:
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.has_news.set()
