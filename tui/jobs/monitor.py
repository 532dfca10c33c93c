"""The jobs of the service, followed for the whole app, and the downloads among them that this app started.

Owns the subscription and its callbacks, and which downloaded model is the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from quantizer.errors import ServiceError, UserError
from tui.connection import ServiceConnection, localllm_service

if TYPE_CHECKING:
    from app.protocol.job import Job

__all__ = ["Downloads", "JobMonitor", "model_of"]


class JobMonitor:
    """The jobs by id, oldest first; `trouble` is the error that prevents following them, or None."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.jobs: dict[str, Job] = {}
        self.trouble: UserError | None = None
        self._connection = connection
        self._changed: list[Callable[[], None]] = []
        self._ended: list[Callable[[Job], None]] = []
        self._phase = ""
        self._has_moved = asyncio.Event()

    @property
    def n_busy(self) -> int:
        """The number of running and queued jobs."""
        return sum(not job.has_ended for job in self.jobs.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change."""
        self._changed.append(changed)

    def on_end(self, ended: Callable[[Job], None]) -> None:
        """Call `ended` with every job that ends."""
        self._ended.append(ended)

    async def run(self) -> None:
        """Follow the jobs whenever there is a service, until cancelled; the chat starts the service."""
        self._connection.watch(self._note_phase)
        self._note_phase()
        while True:
            await self._wait_for_service()
            self._has_moved.clear()
            try:
                await self._follow()
            except UserError as error:
                self.trouble = error
                self._notify()
            await self._has_moved.wait()

    async def _follow(self) -> None:
        client = await localllm_service(self._connection)
        self.jobs = {job.id: job for job in await client.jobs()}
        self.trouble = None
        self._notify()
        try:
            async for job in client.watch_jobs():
                self._update(job)
        except ServiceError:
            await self._check_service()
            raise

    async def _check_service(self) -> None:
        """Report a lost service at once: no other request may be running."""
        try:
            await (await self._connection.service()).status()
        except ServiceError as gone:
            await self._connection.report_failure(gone)

    def _update(self, job: Job) -> None:
        before = self.jobs.get(job.id)
        if job.state == "forgotten":
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
            if job.has_ended and not (before and before.has_ended):  # a new job may have failed at once
                for callback in self._ended:
                    callback(job)
        self._notify()

    async def _wait_for_service(self) -> None:
        while self._phase in {"idle", "starting"} or isinstance(self._connection.state.error, ServiceError):
            self._has_moved.clear()
            await self._has_moved.wait()

    def _note_phase(self) -> None:
        """Record another phase, not each step of loading: each phase causes one retry."""
        if self._connection.state.phase != self._phase:
            self._phase = self._connection.state.phase
            self._has_moved.set()

    def _notify(self) -> None:
        for callback in self._changed:
            callback()


class Downloads:
    """The downloads that this app started; they continue after it quits if the service stays."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.newest = ""  # the path of the latest model
        self._connection = connection
        self._started: set[str] = set()  # ids of their jobs

    async def start(self, reference: str, quantize: str = "") -> Job:
        """Download `reference`; quantize a checkpoint to the type `quantize`. Raises UserError if the service is
        unreachable or refuses."""
        service = await localllm_service(self._connection)
        arguments = {"reference": reference} | ({"quantize": quantize} if quantize else {})
        job = await service.start_job("pull", arguments)
        self._started.add(job.id)
        return job

    def note_end(self, job: Job) -> bool:
        """Record the end of a job; return whether it was started here."""
        if job.id not in self._started:
            return False
        self.newest = model_of(job) or self.newest
        return True


def model_of(job: Job) -> str:
    """Return the path of the model that a pull or a quantization produced, "" for none."""
    result = job.result or {}
    return str(result.get("output") or result.get("path") or "") if job.state == "done" else ""
