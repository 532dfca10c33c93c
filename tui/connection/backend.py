"""The client protocols that the app needs, and how the real client is opened.

Imports nothing heavy: a thread loads httpx and the launcher after the first frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from app.settings.settings import Settings

if TYPE_CHECKING:
    from app.protocol.chat import Completed, GenerationOptions, Message, TextDelta
    from app.protocol.status import ServiceStatus

__all__ = ["ChatBackend", "Opener", "local_service"]


class ChatBackend(Protocol):
    """The chat part of `app.client.service_client.ServiceClient`, which documents the errors."""

    async def status(self) -> ServiceStatus: ...

    async def load(self, model: str) -> str: ...

    async def count_tokens(self, text: str, model: str = "") -> int: ...

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[TextDelta | Completed, None]: ...


Opener = Callable[[], AbstractAsyncContextManager[ChatBackend]]


def local_service(settings: Settings) -> Opener:
    """Return an opener for what `settings` name: a remote engine, the running service, or one started now and stopped
    with the app."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatBackend]:
        await asyncio.to_thread(import_module, "app.client.launcher")
        from app.client.launcher import open_engine

        async with open_engine(settings) as client:
            yield client

    return opened
