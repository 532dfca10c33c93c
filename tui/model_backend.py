"""The seam to the service's models: what the screens about models need of a client.

An engine elsewhere that is no localllm has none of it, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from quantizer.errors import RequestError
from tui.backend import ChatBackend
from tui.connection import Connection

if TYPE_CHECKING:
    from app.client import Checkup, FoundRepo, Job, JobKind, Recommended, Removed, Shelf, TypeChoice

__all__ = ["ModelBackend", "ModelLibrary", "model_backend"]


class ModelLibrary(Protocol):
    """The part of `app.client.LibraryClient` that the app uses; see there for what each raises."""

    async def models(self, *, elsewhere: bool = False, fresh: bool = False) -> Shelf: ...

    async def recommend(self) -> tuple[Recommended, ...]: ...

    async def search(self, words: str, limit: int = 10) -> tuple[FoundRepo, ...]: ...

    async def card(self, model: str) -> tuple[tuple[str, str], ...]: ...

    async def types(self, model: str) -> tuple[TypeChoice, ...]: ...

    async def machine(self) -> Checkup: ...

    async def take_in(self, source: str, name: str = "") -> str: ...

    async def removal(self, model: str) -> Removed: ...

    async def remove(self, model: str) -> Removed: ...

    async def unload(self, model: str) -> None: ...

    async def keep_alive(self, model: str, duration: str) -> None: ...


class ModelBackend(ChatBackend, Protocol):
    """A service that has models to choose from, and does long work."""

    library: ModelLibrary

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job: ...

    async def cancel_job(self, job_id: str) -> Job: ...


async def model_backend(connection: Connection) -> ModelBackend:
    """Return the service as soon as it is there. Raises what prevents it, RequestError for an engine that keeps its
    models to itself."""
    service = await connection.service()
    if not hasattr(service, "library"):
        raise RequestError("This engine keeps its models to itself.", "Its own tools add and remove them.")
    return cast("ModelBackend", service)
