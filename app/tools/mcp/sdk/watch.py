"""What passes over a connection of the package `mcp`, with its bounds; and what the package logs.

Owns what a server may ask of us, and how much it may send unasked. Whatever else it says is passed on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from app.common.event_log import log_event
from app.common.terminal import printable_line
from app.tools.mcp.connection import Observer
from app.tools.mcp.transport.http_client import HttpStatus

MAX_TEXT = 500  # of what a server says of itself
_MAX_UNASKED = 20_000  # messages since our last request
_MAX_LOGGED_LINES = 200  # of each connection, and of the package
_REFUSED = ("sampling/createMessage", "elicitation/create")


def _log_quietly() -> None:
    """Send what the package logs to our log: without a handler it would be written over the screen."""
    for name in ("mcp", "client", "httpx2"):
        logger = logging.getLogger(name)
        logger.addHandler(_EventLog(logging.WARNING))
        logger.propagate = False


class _EventLog(logging.Handler):
    """Writes the first lines of the package: a server can make it write one for each of its messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._n_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._n_lines += 1
        if self._n_lines <= _MAX_LOGGED_LINES:
            log_event("mcp", printable_line(record.getMessage()[:MAX_TEXT]))


_log_quietly()


class Watch:
    """What passes over a connection, and why it ended ("" while it runs)."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.n_received = 0
        self.problem = ""
        self.ended = anyio.Event()
        self.ending: Callable[[], Awaitable[str]] | None = None
        self.status = HttpStatus()
        self._n_unasked = 0
        self._n_logged = 0

    def log(self, text: str) -> None:
        """Log a message of the server; of one that sends many only the first."""
        self._n_logged += 1
        if self._n_logged <= _MAX_LOGGED_LINES:
            self.observer.log(text[:MAX_TEXT])

    def sent(self) -> None:
        self._n_unasked = 0

    def received(self, item: SessionMessage | Exception) -> bool:
        """Note a message; return whether the connection may go on."""
        self.n_received += 1
        self._n_unasked += 1
        if self._n_unasked > _MAX_UNASKED:
            self.problem = f"it sent {_MAX_UNASKED:,} messages without being asked"
            return False
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCRequest) and message.method in _REFUSED:
            self.observer.refused(message.method)
        if isinstance(message, types.JSONRPCResponse):
            _keep_usable_tools(message.result, self.observer)
        return True

    async def reason(self) -> str:
        return self.problem or (await self.ending() if self.ending else "the connection was closed")


def _keep_usable_tools(result: dict[str, Any], observer: Observer) -> None:
    """Remove what the SDK must not see of `tools/list`.

    One tool in a wrong form would make the whole answer invalid, and outputs would be checked by patterns that a server
    chose, some of which take forever.
    """
    tools = result.get("tools")
    if not isinstance(tools, list):
        return
    usable = [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("inputSchema"), dict)]
    if len(usable) < len(tools):
        observer.log(f"lists {len(tools) - len(usable)} tools without a schema; they are left out")
    for tool in usable:
        tool.pop("outputSchema", None)
    result["tools"] = usable


class _Watched:
    """A stream of messages over another one."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.aclose()


class _WatchedReads(_Watched):
    """A read stream whose messages are noted, ended where they are too many."""

    async def receive(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._watch.ended.set()
            raise
        if not self._watch.received(item):
            self._watch.ended.set()
            await self._inner.aclose()
            raise anyio.EndOfStream
        return item

    def __aiter__(self) -> _WatchedReads:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _WatchedWrites(_Watched):
    """A write stream whose requests are noted."""

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, types.JSONRPCRequest):
            self._watch.sent()
        await self._inner.send(item)


@asynccontextmanager
async def watched(transport: AbstractAsyncContextManager[Any], watch: Watch) -> AsyncGenerator[Any, None]:
    async with transport as (reads, writes):
        yield _WatchedReads(reads, watch), _WatchedWrites(writes, watch)
