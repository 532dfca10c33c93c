"""The seam to the jobs of the service: what the app asks of a client that has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from quantizer.errors import RequestError
from tui.connection import Connection

if TYPE_CHECKING:
    from app.job import Job

__all__ = ["JobsBackend", "jobs_of"]


@runtime_checkable
class JobsBackend(Protocol):
    """The part of `app.client.ServiceClient` that is about jobs; see there for what each raises."""

    async def jobs(self) -> tuple[Job, ...]: ...

    def watch_jobs(self) -> AsyncGenerator[Job, None]: ...

    async def job_log(self, job_id: str) -> str: ...

    async def cancel_job(self, job_id: str) -> Job: ...

    async def retry_job(self, job_id: str) -> Job: ...

    async def forget_job(self, job_id: str) -> None: ...

    async def stay_until_jobs_end(self) -> None: ...


async def jobs_of(connection: Connection) -> JobsBackend:
    """Return the client as soon as the service is there. Raises what prevents it, and RequestError for an engine of
    another kind, which does no jobs."""
    client = await connection.service()
    if not isinstance(client, JobsBackend):
        raise RequestError("The engine that is connected does no jobs.", "Start localllm without --connect for those.")
    return client
