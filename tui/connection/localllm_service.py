"""The client protocols for models, plans and jobs, which only a service of localllm offers.

Owns the check that the connected engine is one: a remote engine (`--connect`) may only support chat.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from quantizer.errors import RequestError
from tui.connection.backend import ChatBackend
from tui.connection.connection import ServiceConnection

if TYPE_CHECKING:
    from app.client import (
        HubRepository,
        Job,
        JobKind,
        LocalModels,
        MachineReport,
        PlanReport,
        PlanRequest,
        Recommended,
        RemovalResult,
        TypeChoice,
    )

__all__ = ["LocalllmService", "ModelLibrary", "localllm_service"]


class ModelLibrary(Protocol):
    """The part of `app.client.LibraryClient` that the app uses, which documents the errors."""

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels: ...

    async def recommend(self) -> tuple[Recommended, ...]: ...

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]: ...

    async def show(self, model: str) -> tuple[tuple[str, str], ...]: ...

    async def types(self, model: str) -> tuple[TypeChoice, ...]: ...

    async def machine(self) -> MachineReport: ...

    async def import_model(self, source: str, name: str = "") -> str: ...

    async def removal(self, model: str) -> RemovalResult: ...

    async def remove(self, model: str) -> RemovalResult: ...

    async def unload(self, model: str) -> None: ...

    async def keep_alive(self, model: str, duration: str) -> None: ...


class Planner(Protocol):
    """The part of `app.client.ServiceClient` for plans that the app uses."""

    async def plan(self, request: PlanRequest) -> PlanReport: ...

    async def reload(self, request: PlanRequest) -> str: ...


class LocalllmService(ChatBackend, Protocol):
    """The part of `app.client.ServiceClient` for models, plans and jobs, which documents the errors."""

    library: ModelLibrary
    planner: Planner

    async def jobs(self) -> tuple[Job, ...]: ...

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job: ...

    def watch_jobs(self) -> AsyncGenerator[Job, None]: ...

    async def job_log(self, job_id: str) -> str: ...

    async def cancel_job(self, job_id: str) -> Job: ...

    async def retry_job(self, job_id: str) -> Job: ...

    async def forget_job(self, job_id: str) -> None: ...

    async def stay_until_jobs_end(self) -> None: ...


async def localllm_service(connection: ServiceConnection) -> LocalllmService:
    """Return the service once it is reachable. Raises what prevents it, and RequestError for another kind of engine."""
    service = await connection.service()
    if not hasattr(service, "library"):
        raise RequestError(
            "The connected engine only supports chat.", "Start localllm without --connect for models, plans and jobs."
        )
    return cast("LocalllmService", service)
