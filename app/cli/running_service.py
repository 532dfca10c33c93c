"""A question to the service that runs already. Owns the connection; starts no service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from app.settings.settings import load_settings

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient


_Answer = TypeVar("_Answer")


def ask_service(call: Callable[[ServiceClient], Awaitable[_Answer]]) -> _Answer:
    """Return the answer of the running service. Raises UserError, ServiceError where none runs."""
    from app.client.service_client import ServiceClient
    from app.common.keys import own_key

    settings = load_settings()

    async def answer() -> _Answer:
        async with ServiceClient(settings.url, own_key(settings)) as client:
            return await call(client)

    return asyncio.run(answer())
