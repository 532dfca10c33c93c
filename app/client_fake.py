"""A scripted stand-in for `app.client.ServiceClient`: same calls, no service, no clock, no chance.

Owns what a test says the service does. Knows nothing of HTTP or of who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from app.client import (
    Completed,
    GenerationOptions,
    Job,
    JobKind,
    JobState,
    Message,
    ModelStatus,
    ServiceStatus,
    TextDelta,
)
from app.client.library_fake import ScriptedLibrary
from app.client.planner_fake import ScriptedPlanner
from quantizer.errors import RequestError, UserError

__all__ = ["COMPLETED", "LOADING", "READY", "ScriptedClient", "ScriptedJobs", "ScriptedReply"]

COMPLETED = Completed(
    finish_reason="stop",
    n_prompt_tokens=40,
    n_cached_tokens=0,
    n_output_tokens=12,
    time_to_first_token_s=0.25,
    prefill_tokens_per_s=160.0,
    decode_tokens_per_s=48.0,
)
READY = ModelStatus(id="guide", state="ready", progress=1.0, n_ctx=2048, notices=(), error=None)
LOADING = replace(READY, state="loading", progress=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One answer: its thoughts, then its text. After `pause_after` deltas it waits until `ScriptedClient.resume` is
    called."""

    thoughts: tuple[str, ...] = ()
    deltas: tuple[str, ...] = ()
    ending: Completed | UserError = COMPLETED
    pause_after: int | None = None


class ScriptedJobs:
    """The jobs of a service that does none: they wait until a test says with `change` what becomes of them.

    `started` are the kinds and arguments of those asked for, `logs` what each is to have said, by id.
    """

    def __init__(self, *jobs: Job) -> None:
        self.started: list[tuple[JobKind, dict[str, Any]]] = []
        self.logs: dict[str, str] = {}
        self.is_staying = False
        self._jobs = {job.id: job for job in jobs}
        self._watchers: list[asyncio.Queue[Job]] = []

    def change(self, job: Job) -> None:
        """Let `job` stand as given, and tell all who watch."""
        self._jobs[job.id] = job
        for watcher in self._watchers:
            watcher.put_nowait(job)

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, oldest first."""
        return tuple(self._jobs.values())

    async def job(self, job_id: str) -> Job:
        """Return one job. Raises RequestError for one that is not there."""
        if job_id not in self._jobs:
            raise RequestError(f"There is no job {job_id}.")
        return self._jobs[job_id]

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Add a job that waits, as job-1, job-2 ..."""
        self.started.append((kind, dict(arguments)))
        number = len(self._jobs) + 1
        title = " ".join([kind, *(str(value) for value in arguments.values())])
        job = Job(id=f"job-{number}", kind=kind, title=title, arguments=dict(arguments), created_s=float(number))
        self.change(job)
        return job

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job, then each that is changed."""
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
        """Return what `logs` has of the job."""
        return self.logs.get((await self.job(job_id)).id, "")

    async def cancel_job(self, job_id: str) -> Job:
        """Let a job be cancelled at once."""
        return await self._become(job_id, "cancelled", has_ended=False)

    async def retry_job(self, job_id: str) -> Job:
        """Let a job that ended wait again."""
        return await self._become(job_id, "queued", has_ended=True)

    async def forget_job(self, job_id: str) -> None:
        """Remove a job that ended."""
        await self._become(job_id, "forgotten", has_ended=True)
        del self._jobs[job_id]

    async def stay_until_jobs_end(self) -> None:
        """Note that the service is to stay."""
        self.is_staying = True

    async def _become(self, job_id: str, state: JobState, *, has_ended: bool) -> Job:
        job = await self.job(job_id)
        if job.has_ended != has_ended:
            raise RequestError(f"The job {job_id} is {job.state}.")
        job = replace(job, state=state, error=None)
        self.change(job)
        return job


class ScriptedClient(ScriptedJobs):
    """Answers the n-th question with the n-th reply; the last reply serves all later ones.

    `model` is what `status` reports. `requests` and `options` are what it was sent, `loads` the models asked for,
    `n_aborted` counts answers that were closed before their end, `n_opened` and `n_closed` count uses of `opened`.
    `planner` plans as a test says.
    """

    def __init__(self, *replies: ScriptedReply, model: ModelStatus = READY, jobs: Sequence[Job] = ()) -> None:
        super().__init__(*jobs)
        self.library = ScriptedLibrary()
        self.planner = ScriptedPlanner()
        self.model = model
        self.requests: list[tuple[Message, ...]] = []
        self.loads: list[str] = []
        self.options: list[GenerationOptions] = []
        self.n_aborted = 0
        self.n_opened = 0
        self.n_closed = 0
        self._replies = replies or (ScriptedReply(deltas=("Hello.",)),)
        self._may_go_on = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ScriptedClient]:
        """Stand in for `app.launcher.open_service`."""
        self.n_opened += 1
        try:
            yield self
        finally:
            self.n_closed += 1

    def resume(self) -> None:
        """Let a paused answer go on."""
        self._may_go_on.set()

    async def status(self) -> ServiceStatus:
        """Return `model` as the service's only model."""
        stays_until = "jobs-end" if self.is_staying else ""
        return ServiceStatus(version="0", default_model=self.model.id, models=(self.model,), stays_until=stays_until)

    async def load(self, model: str, when_unfit: str = "") -> str:  # noqa: ARG002 - the one model stands for every name
        """Note what was asked for, and return the id of the only model."""
        self.loads.append(model)
        return self.model.id

    async def count_tokens(self, text: str, model: str = "") -> int:  # noqa: ARG002
        """Count words: any tokens will do."""
        return len(text.split())

    async def chat(
        self,
        messages: Sequence[Message],
        model: str = "",  # noqa: ARG002 - the script answers, whatever is asked for
        options: GenerationOptions | None = None,
    ) -> AsyncGenerator[TextDelta | Completed, None]:
        """Yield the scripted answer, waiting for the model to be ready as the service does."""
        self.requests.append(tuple(messages))
        self.options.append(options or GenerationOptions())
        reply = self._replies[min(len(self.requests), len(self._replies)) - 1]
        is_whole = False
        try:
            deltas = [*((thought, "") for thought in reply.thoughts), *(("", text) for text in reply.deltas)]
            for index, (thought, text) in enumerate(deltas):
                if index == reply.pause_after:
                    await self._paused()
                yield TextDelta(text, n_tokens=index + 1, reasoning=thought)
            if reply.pause_after is not None and reply.pause_after >= len(deltas):
                await self._paused()
            is_whole = True
            if isinstance(reply.ending, UserError):
                raise reply.ending
            yield reply.ending
        finally:
            self.n_aborted += not is_whole

    async def _paused(self) -> None:
        self._may_go_on.clear()
        await self._may_go_on.wait()
