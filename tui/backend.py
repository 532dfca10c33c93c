"""The seam to the service: what the app needs of a client, and how the real one is opened.

Imports nothing heavy: httpx and the launcher are loaded by a thread after the first frame is on the screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from app.settings import Settings
from quantizer.errors import RequestError

if TYPE_CHECKING:
    from app.client import (
        Completed,
        GenerationOptions,
        Job,
        JobKind,
        Message,
        PlanReport,
        PlanWish,
        ServiceStatus,
        TextDelta,
    )

__all__ = ["ChatBackend", "MeasuringBackend", "Opener", "PlanBackend", "local_service", "measuring", "planner_of"]


class ChatBackend(Protocol):
    """The part of `app.client.ServiceClient` that the app uses; see there for what each raises."""

    async def status(self) -> ServiceStatus: ...

    async def load(self, model: str) -> str: ...

    async def count_tokens(self, text: str, model: str = "") -> int: ...

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[TextDelta | Completed, None]: ...


class PlanBackend(Protocol):
    """The part of `app.client.PlannerClient` that the app uses."""

    async def plan(self, wish: PlanWish) -> PlanReport: ...

    async def reload(self, wish: PlanWish) -> str: ...


class MeasuringBackend(ChatBackend, Protocol):
    """What measures models beside chatting with them: the part of `app.client.ServiceClient` that metrics use."""

    async def jobs(self) -> tuple[Job, ...]: ...

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job: ...


Opener = Callable[[], AbstractAsyncContextManager[ChatBackend]]


def planner_of(backend: ChatBackend) -> PlanBackend:
    """Return what plans behind `backend`. Raises RequestError for an engine elsewhere, which only chats."""
    planner: PlanBackend | None = getattr(backend, "planner", None)
    if planner is None:
        raise RequestError("This engine does not plan.", "Start localllm without --connect to plan for this machine.")
    return planner


def measuring(backend: ChatBackend) -> MeasuringBackend:
    """Return `backend` as one that measures. Raises RequestError for an engine elsewhere, which only chats."""
    if not hasattr(backend, "start_job"):
        raise RequestError("This engine does not tell what it measures.", "Start localllm without --connect.")
    return cast("MeasuringBackend", backend)


def local_service(settings: Settings) -> Opener:
    """Return an opener of what `settings` name: the engine elsewhere, the service that runs, else one started and
    stopped with us."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatBackend]:
        await asyncio.to_thread(import_module, "app.launcher")
        from app.launcher import open_engine

        async with open_engine(settings) as client:
            yield client

    return opened
