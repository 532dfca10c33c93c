"""The jobs of a scripted service: they wait until a test changes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from app.protocol.errors import RequestError
from app.protocol.job import Job, JobKind, JobState


class ScriptedJobs:
    """The jobs of a service that runs none: they wait until a test changes them with `change`.

    `started` are the kinds and arguments of the started ones, `logs` their logs by id.
    """

    def __init__(self, *jobs: Job) -> None:
        self.started: list[tuple[JobKind, dict[str, Any]]] = []
        self.logs: dict[str, str] = {}
        self.is_staying = False
        self._jobs = {job.id: job for job in jobs}
        self._watchers: list[asyncio.Queue[Job]] = []

    def change(self, job: Job) -> None:
        """Replace a job, and notify all watchers."""
        self._jobs[job.id] = job
        for watcher in self._watchers:
            watcher.put_nowait(job)

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, oldest first."""
        return tuple(self._jobs.values())

    async def job(self, job_id: str) -> Job:
        """Return one job. Raises RequestError for an unknown id."""
        if job_id not in self._jobs:
            raise RequestError(f"There is no job {job_id}.")
        return self._jobs[job_id]

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Add a waiting job, as job-1, job-2 ..."""
        self.started.append((kind, dict(arguments)))
        number = len(self._jobs) + 1
        title = " ".join([kind, *(str(value) for value in arguments.values())])
        job = Job(id=f"job-{number}", kind=kind, title=title, arguments=dict(arguments), created_s=float(number))
        self.change(job)
        return job

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job, then each changed one."""
        watcher: asyncio.Queue[Job] = asyncio.Queue()
        for job in self._jobs.values():
            watcher.put_nowait(job)
        self._watchers.append(watcher)
        try:
            while True:
                yield await watcher.get()
        finally:
            self._watchers.remove(watcher)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job as it changes, until it has ended."""
        await self.job(job_id)
        async for job in self.watch_jobs():
            if job.id == job_id:
                yield job
                if job.has_ended:
                    return

    async def job_log(self, job_id: str) -> str:
        """Return the log of the job in `logs`."""
        return self.logs.get((await self.job(job_id)).id, "")

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a job at once."""
        return await self._become(job_id, "cancelled", has_ended=False)

    async def retry_job(self, job_id: str) -> Job:
        """Queue an ended job again."""
        return await self._become(job_id, "queued", has_ended=True)

    async def forget_job(self, job_id: str) -> None:
        """Delete an ended job."""
        await self._become(job_id, "forgotten", has_ended=True)
        del self._jobs[job_id]

    async def stay_until_jobs_end(self) -> None:
        """Record that the service is to stay."""
        self.is_staying = True

    async def _become(self, job_id: str, state: JobState, *, has_ended: bool) -> Job:
        job = await self.job(job_id)
        if job.has_ended != has_ended:
            raise RequestError(f"The job {job_id} is {job.state}.")
        job = replace(job, state=state, error=None)
        self.change(job)
        return job
