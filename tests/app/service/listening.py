"""The service's HTTP server over any ASGI application, for tests of what stands below the routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from app.service import server
from app.service.http.connections import ConnectionLimits
from app.service.server import listen

__all__ = ["listening"]


@asynccontextmanager
async def listening(application: ASGIApp, limits: ConnectionLimits | None = None) -> AsyncIterator[int]:
    """Serve `application` on a free port of loopback, and give the port."""
    has_begun = asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        config = server._config(application, limits or ConnectionLimits())
        running: uvicorn.Server = server._Server(config, has_begun.set, lambda: None)
        task = asyncio.create_task(running.serve(sockets=[listener]))
        await has_begun.wait()
        try:
            yield listener.getsockname()[1]
        finally:
            running.should_exit = True
            await task
