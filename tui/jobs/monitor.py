"""Every job of the service as it stands, wherever the person is in the app.

Owns the watching, and who is told what. How a job looks belongs to its screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from quantizer.errors import ServiceError, UserError
from tui.connection import ServiceConnection
from tui.own_service import own_service

if TYPE_CHECKING:
    from app.protocol.job import Job

__all__ = ["JobMonitor"]


class JobMonitor:
    """The jobs by id, oldest first; `trouble` says why they cannot be watched, None while they are."""

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
        """How many jobs run or wait."""
        return sum(not job.has_ended for job in self.jobs.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change."""
        self._changed.append(changed)

    def on_end(self, ended: Callable[[Job], None]) -> None:
        """Call `ended` with every job that ends while it is watched."""
        self._ended.append(ended)

    async def hold(self) -> None:
        """Watch the jobs, until cancelled, whenever there is a service; it is the chat that starts one."""
        self._connection.watch(self._note_phase)
        self._note_phase()
        while True:
            await self._service_is_there()
            self._has_moved.clear()
            try:
                await self._follow()
            except UserError as error:
                self.trouble = error
                self._tell()
            await self._has_moved.wait()

    async def _follow(self) -> None:
        client = await own_service(self._connection)
        self.jobs = {job.id: job for job in await client.jobs()}
        self.trouble = None
        self._tell()
        try:
            async for job in client.watch_jobs():
                self._take(job)
        except ServiceError:
            await self._find_loss()
            raise

    async def _find_loss(self) -> None:
        """Where the service is gone, let it be known at once: nobody may be asking it anything else."""
        try:
            await (await self._connection.service()).status()
        except ServiceError as gone:
            await self._connection.lose(gone)

    def _take(self, job: Job) -> None:
        before = self.jobs.get(job.id)
        if job.state == "forgotten":
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
            if job.has_ended and not (before and before.has_ended):  # one that is new may have failed at once
                for told in self._ended:
                    told(job)
        self._tell()

    async def _service_is_there(self) -> None:
        while self._phase in {"idle", "starting"} or isinstance(self._connection.state.error, ServiceError):
            self._has_moved.clear()
            await self._has_moved.wait()

    def _note_phase(self) -> None:
        """Take note of another phase, not of each step of loading: what failed is tried again once for each."""
        if self._connection.state.phase != self._phase:
            self._phase = self._connection.state.phase
            self._has_moved.set()

    def _tell(self) -> None:
        for told in self._changed:
            told()
