"""The seam to a service of localllm: what the app needs of it beside chatting.

Owns the question whether what is connected is one. An engine elsewhere (`--connect`) may be of another kind: it chats,
has none of this, and says so.
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
    """The part of `app.client.LibraryClient` that the app uses; see there for what each raises."""

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels: ...

    async def recommend(self) -> tuple[Recommended, ...]: ...

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]: ...

    async def card(self, model: str) -> tuple[tuple[str, str], ...]: ...

    async def types(self, model: str) -> tuple[TypeChoice, ...]: ...

    async def machine(self) -> MachineReport: ...

    async def import_model(self, source: str, name: str = "") -> str: ...

    async def removal(self, model: str) -> RemovalResult: ...

    async def remove(self, model: str) -> RemovalResult: ...

    async def unload(self, model: str) -> None: ...

    async def keep_alive(self, model: str, duration: str) -> None: ...


class Planner(Protocol):
    """The part of `app.client.PlannerClient` that the app uses."""

    async def plan(self, wish: PlanRequest) -> PlanReport: ...

    async def reload(self, wish: PlanRequest) -> str: ...


class LocalllmService(ChatBackend, Protocol):
    """The part of `app.client.ServiceClient` that is about models, plans and jobs; see there for what each raises."""

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
    """Return the service as soon as it is there. Raises what prevents it, and RequestError for an engine of another
    kind."""
    service = await connection.service()
    if not hasattr(service, "library"):
        raise RequestError(
            "The connected engine only supports chat.", "Start localllm without --connect for models, plans and jobs."
        )
    return cast("LocalllmService", service)
