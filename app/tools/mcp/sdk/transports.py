"""The ways to a server for the package `mcp`: a process, streamable HTTP, and the former HTTP form (SSE).

Owns what may pass: how much a server may send unasked, and what its refusals mean.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
import mcp_types as types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from app.common.event_log import log_event
from app.common.outbound import no_tls, tls_context
from app.common.terminal import printable_line
from app.tools.environment import server_environment
from app.tools.mcp.config import HttpLaunch, StdioLaunch
from app.tools.mcp.connection import Observer
from app.tools.mcp.process import MAX_MESSAGE_BYTES, OWNER_VARIABLE, ServerProcess, owner_mark

MAX_TEXT = 500  # of what a server says of itself
_MAX_UNASKED = 20_000  # messages since our last request
_MAX_LOGGED_LINES = 200  # of each connection, and of the package


class _EventLog(logging.Handler):
    """Writes the first lines of the package: a server can make it write one for each of its messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._n_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._n_lines += 1
        if self._n_lines <= _MAX_LOGGED_LINES:
            log_event("mcp", printable_line(record.getMessage()[:MAX_TEXT]))


for _name in ("mcp", "client", "httpx2"):  # without a handler they would write over the screen
    logging.getLogger(_name).addHandler(_EventLog(logging.WARNING))
    logging.getLogger(_name).propagate = False


class Watch:
    """What passes over a connection, and why it ended ("" while it runs)."""

    def __init__(self, observer: Observer, remedy: str = "", login_problem: Callable[[], str] = str) -> None:
        self.observer = observer
        self._remedy = remedy  # of a server that wants to know who asks
        self._login_problem = login_problem
        self.n_received = 0
        self.problem = ""
        self.ended = anyio.Event()
        self.ending: Callable[[], Awaitable[str]] | None = None
        self.http_status = 0  # of the last answer: the SDK's errors do not tell it
        self.listed: dict[str, list[object]] = {}  # entries of the page that is asked for, by its key
        self._n_unasked = 0
        self._n_logged = 0

    def log(self, text: str) -> None:
        """Log a message of the server; of one that sends many only the first."""
        self._n_logged += 1
        if self._n_logged <= _MAX_LOGGED_LINES:
            self.observer.log(text[:MAX_TEXT])

    def refusal(self, status: int) -> tuple[str, str]:
        """Return the cause and the remedy where a server refuses who asks."""
        problem = self._login_problem()
        return f"answers {status}: {problem or 'it wants to know who asks'}", self._remedy

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
        if isinstance(message, types.JSONRPCResponse):
            self._keep_listed(message.result)
        return True

    def _keep_listed(self, result: dict[str, Any]) -> None:
        """Note what a page of a listing has, as the server wrote it, and leave in it what the SDK reads: one entry in a
        wrong form would make it refuse the whole page. Outputs would be checked by patterns that a server chose, some
        of which take forever: the SDK learns of none."""
        for key, adapter in _ENTRIES.items():
            if isinstance(entries := result.get(key), list):
                if key in self.listed:
                    self.listed[key] += entries
                result[key] = [entry for entry in map(_without_output_schema, entries) if _is_valid(adapter, entry)]

    async def reason(self) -> str:
        return self.problem or (await self.ending() if self.ending else "the connection was closed")


_ENTRIES: Mapping[str, TypeAdapter[Any]] = {
    key: TypeAdapter(kind)
    for key, kind in (("tools", types.Tool), ("prompts", types.Prompt), ("resources", types.Resource))
}


def _without_output_schema(entry: object) -> object:
    return {key: entry[key] for key in entry if key != "outputSchema"} if isinstance(entry, dict) else entry


def _is_valid(adapter: TypeAdapter[Any], entry: object) -> bool:
    try:
        adapter.validate_python(entry, by_name=False)
    except (ValidationError, RecursionError):
        return False
    return True


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


_MAX_UNREADABLE = 1_000  # lines that are no message
# The number of a request that a line answers, at its beginning or its end: ours are numbers.
_ANSWER = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,\s*"result"')
_ANSWER_AT_END = re.compile(rb'\}\s*,\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*\}\s*$')


@asynccontextmanager
async def stdio(launch: StdioLaunch, watch: Watch) -> AsyncGenerator[Any, None]:
    """Start a process and yield the streams of its messages; ends it with all that it started."""
    environment = {**server_environment(os.environ), **launch.env, OWNER_VARIABLE: owner_mark()}
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
async def http(launch: HttpLaunch, watch: Watch, auth: httpx2.Auth | None = None) -> AsyncGenerator[Any, None]:
    """Yield the streams of the messages of a URL that takes and gives them by HTTP."""
    async with (
        http_client(launch.url, launch.headers, watch, auth) as client,
        streamable_http_client(launch.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(launch: HttpLaunch, watch: Watch, own_auth: httpx2.Auth | None = None) -> AsyncGenerator[Any, None]:
    """Yield the streams of the messages of a URL of the protocol before streamable HTTP."""

    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG001
        return http_client(launch.url, {**launch.headers, **(headers or {})}, watch, own_auth)

    async with sse_client(launch.url, httpx_client_factory=client) as streams:
        yield streams


_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # seconds; a call's own limit is shorter
REFUSED_STATUSES = (401, 403)


def http_client(
    url: str, headers: Mapping[str, str], watch: Watch, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return a client for `url` whose answers are not compressed and have a largest size; events are bounded by the
    SDK. Raises UsageError where the environment names certificates that cannot be read."""

    async def note(response: httpx2.Response) -> None:
        watch.http_status = response.status_code

    verify = tls_context() if url.startswith("https:") else no_tls()
    return httpx2.AsyncClient(
        transport=BoundedTransport(httpx2.AsyncHTTPTransport(verify=verify)),
        headers={"accept-encoding": "identity", **headers},
        timeout=_TIMEOUT,
        event_hooks={"response": [note]},
        auth=auth,
    )


def explained_http(error: BaseException, watch: Watch) -> tuple[str, str]:
    """Return the cause and the remedy of what went wrong on the way to a server."""
    code = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else watch.http_status
    if code in REFUSED_STATUSES:
        return watch.refusal(code)
    if isinstance(error, httpx2.ConnectError):
        return f"cannot be reached: {error}", "Start it, or correct its `url` in mcp.json."
    if isinstance(error, httpx2.HTTPError):
        return f"does not answer as it should: {error or type(error).__name__}", "Correct its `url` in mcp.json."
    return (f"answers {code}" if code >= 400 else "does not speak the protocol"), "Correct its `url` in mcp.json."


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Passes requests on, and ends an answer that is compressed or too large."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("its answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most the largest size of a message."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for piece in self._inner:
            n_bytes += len(piece)
            if n_bytes > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"the answer has more than {MAX_MESSAGE_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
