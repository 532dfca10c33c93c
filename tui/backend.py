"""The seam to the service: what the app needs of a client, and how the real one is opened.

Imports nothing heavy: httpx and the launcher are loaded by a thread after the first frame is on the screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from app.settings.settings import Settings

if TYPE_CHECKING:
    from app.client import (
        Completed,
        GenerationOptions,
        Message,
        ServiceStatus,
        TextDelta,
    )

__all__ = ["ChatBackend", "Opener", "local_service"]


class ChatBackend(Protocol):
    """The part of `app.client.ServiceClient` that the app uses; see there for what each raises."""

    async def status(self) -> ServiceStatus: ...

    async def load(self, model: str) -> str: ...

    async def count_tokens(self, text: str, model: str = "") -> int: ...

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[TextDelta | Completed, None]: ...


Opener = Callable[[], AbstractAsyncContextManager[ChatBackend]]


def local_service(settings: Settings) -> Opener:
    """Return an opener of what `settings` name: the engine elsewhere, the service that runs, else one started and
    stopped with us."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatBackend]:
        await asyncio.to_thread(import_module, "app.client.launcher")
        from app.client.launcher import open_engine

        async with open_engine(settings) as client:
            yield client

    return opened
