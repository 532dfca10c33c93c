"""The ways to a server for the package `mcp`: a process, streamable HTTP, and the former HTTP form (SSE).

Owns what of a process's output is a message. Its bounds are `app.tools.mcp.transport`'s.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from app.tools.mcp.config.entry import HttpLaunch, StdioLaunch
from app.tools.mcp.sdk.watch import MAX_TEXT, Watch
from app.tools.mcp.transport.http_client import http_client
from app.tools.mcp.transport.process import MAX_MESSAGE_BYTES, OWNER_VARIABLE, ServerProcess, owner_mark

_MAX_UNREADABLE = 1_000  # lines that are no message
# The number of a request that a line answers, at its beginning or its end: ours are numbers.
_ANSWER = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,\s*"result"')
_ANSWER_AT_END = re.compile(rb'\}\s*,\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*\}\s*$')


@asynccontextmanager
async def stdio(launch: StdioLaunch, watch: Watch) -> AsyncGenerator[Any, None]:
    """Start a process and yield the streams of its messages; ends it with all that it started."""
    environment = {**get_default_environment(), **launch.env, OWNER_VARIABLE: owner_mark()}
    process = await ServerProcess.start(launch, environment, watch.observer.log)
    watch.ending = process.wait_exited
    inbound_send, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, outbound_receive = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        n_unreadable = 0
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with inbound_send:
                async for line in process.lines():
                    message = read_message(line)
                    if message is not None:
                        await inbound_send.send(message)
                        continue
                    n_unreadable += 1
                    if n_unreadable == 1:
                        watch.observer.log(f"a line that is no message: {line[:MAX_TEXT].decode('utf-8', 'replace')}")
                    if n_unreadable > _MAX_UNREADABLE:
                        process.problem = f"it wrote {_MAX_UNREADABLE:,} lines that are no messages"
                        return

    async def write() -> None:
        async with outbound_receive:
            async for item in outbound_receive:
                process.write_line(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    try:
        async with anyio.create_task_group() as tasks, inbound, outbound:
            tasks.start_soon(read)
            tasks.start_soon(write)
            try:
                yield inbound, outbound
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.end()


def read_message(line: bytes) -> SessionMessage | None:
    """Return the message in a line, an error for an answer that cannot be read, None for anything else."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    found = _ANSWER.match(line) or _ANSWER_AT_END.search(line[-MAX_TEXT:])
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="an answer that cannot be read")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=int(found.group(1)), error=error))


@asynccontextmanager
async def http(launch: HttpLaunch, watch: Watch) -> AsyncGenerator[Any, None]:
    """Yield the streams of the messages of a URL that takes and gives them by HTTP."""
    async with (
        http_client(launch.headers, watch.status) as client,
        streamable_http_client(launch.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(launch: HttpLaunch, watch: Watch) -> AsyncGenerator[Any, None]:
    """Yield the streams of the messages of a URL of the protocol before streamable HTTP."""

    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG001
        return http_client({**launch.headers, **(headers or {})}, watch.status)

    async with sse_client(launch.url, httpx_client_factory=client) as streams:
        yield streams
