"""Connections to servers through the official package `mcp`: the one module that imports it.

Owns how a server is reached, what it may ask of us (the folders of the chat, and nothing else), and the form of its
errors. Import it when a server starts: the package takes more than a second.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError

from app import __version__
from app.event_log import log_event
from app.terminal import printable_line
from app.tools.mcp.configuration import HttpLaunch, Launch, ServerConfig, StdioLaunch
from app.tools.mcp.connection import Connection, ConnectionEndedError, Observer, RefusedError, ServerInfo
from app.tools.mcp.expansion import expanded
from app.tools.mcp.http_client import HttpStatus, explained_http, http_client
from app.tools.mcp.listing import MAX_LISTED
from app.tools.mcp.orphans import OWNER_VARIABLE, owner_mark
from app.tools.mcp.process import MAX_MESSAGE_BYTES, ServerProcess
from app.tools.tool import ToolProgress
from quantizer.errors import ToolError, UserError

__all__ = ["connect", "connect_to"]

_MAX_UNASKED = 20_000  # messages since our last request
_MAX_UNREADABLE = 1_000  # lines that are no message
_MAX_PAGES = 50
_MAX_TEXT = 500
_MAX_LOGGED_LINES = 200  # of each connection, and of the package
_OTHER_PROTOCOL = (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND)
_NO_STREAMABLE_HTTP = (400, 404, 405)  # what servers of the former HTTP form answer to it
_ENDED = ((types.CONNECTION_CLOSED, "Connection closed"), (types.INVALID_REQUEST, "Session terminated"))
_REFUSED = ("sampling/createMessage", "elicitation/create")
# The number of a request that a line answers, at its beginning or its end: ours are numbers.
_ANSWER = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,\s*"result"')
_ANSWER_AT_END = re.compile(rb'\}\s*,\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*\}\s*$')
_CLIENT = types.Implementation(name="localllm", version=__version__)
_T = TypeVar("_T")


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
            log_event("mcp", printable_line(record.getMessage()[:_MAX_TEXT]))


_log_quietly()


class _Watch:
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
            self.observer.log(text[:_MAX_TEXT])

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

    def __init__(self, inner: Any, watch: _Watch) -> None:
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
async def _watched(transport: AbstractAsyncContextManager[Any], watch: _Watch) -> AsyncGenerator[Any, None]:
    async with transport as (reads, writes):
        yield _WatchedReads(reads, watch), _WatchedWrites(writes, watch)


@asynccontextmanager
async def _stdio(launch: StdioLaunch, watch: _Watch) -> AsyncGenerator[Any, None]:
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
                    message = _message(line)
                    if message is not None:
                        await inbound_send.send(message)
                        continue
                    n_unreadable += 1
                    if n_unreadable == 1:
                        watch.observer.log(f"a line that is no message: {line[:_MAX_TEXT].decode('utf-8', 'replace')}")
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


def _message(line: bytes) -> SessionMessage | None:
    """Return the message in a line, an error for an answer that cannot be read, None for anything else."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    found = _ANSWER.match(line) or _ANSWER_AT_END.search(line[-_MAX_TEXT:])
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="an answer that cannot be read")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=int(found.group(1)), error=error))


@asynccontextmanager
async def _http(launch: HttpLaunch, watch: _Watch) -> AsyncGenerator[Any, None]:
    async with (
        http_client(launch.headers, watch.status) as client,
        streamable_http_client(launch.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse(launch: HttpLaunch, watch: _Watch) -> AsyncGenerator[Any, None]:
    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG001
        return http_client({**launch.headers, **(headers or {})}, watch.status)

    async with sse_client(launch.url, httpx_client_factory=client) as streams:
        yield streams


@asynccontextmanager
async def connect(config: ServerConfig, observer: Observer) -> AsyncIterator[Connection]:
    """Open the connection to a server of `mcp.json`. Raises ToolError where that does not succeed.

    The handshake that all servers up to 2025 know is tried first: some end at any other first message. One that knows
    only the later protocol says so, and is asked in that. An address whose kind the file does not tell is tried as
    streamable HTTP, and as SSE where it refuses that.
    """
    assert config.launch is not None
    launch = expanded(config.launch, os.environ)
    async with AsyncExitStack() as stack:
        try:
            connection = await _entered(stack, launch, observer, "legacy")
        except _OtherProtocolError:
            connection = await _entered(stack, launch, observer, "auto")
        yield connection


class _OtherProtocolError(ToolError):
    """The server does not know the handshake of the protocols up to 2025."""


async def _entered(stack: AsyncExitStack, launch: Launch, observer: Observer, mode: str) -> Connection:
    watch = _Watch(observer)
    if isinstance(launch, StdioLaunch):
        return await stack.enter_async_context(connect_to(_stdio(launch, watch), watch, mode))
    if launch.transport == "sse":
        return await stack.enter_async_context(connect_to(_sse(launch, watch), watch, mode))
    try:
        return await stack.enter_async_context(connect_to(_http(launch, watch), watch, mode))
    except ToolError as error:
        if launch.transport or watch.status.last not in _NO_STREAMABLE_HTTP:
            raise
        watch = _Watch(observer)
        try:
            return await stack.enter_async_context(connect_to(_sse(launch, watch), watch, "legacy"))
        except ToolError:
            raise error from None


@asynccontextmanager
async def connect_to(server: Any, watch: _Watch | Observer, mode: str = "auto") -> AsyncIterator[Connection]:
    """Open a connection over a transport, or in tests to a server of the SDK in this process. Raises ToolError."""
    if not isinstance(watch, _Watch):
        watch = _Watch(watch)
    elif isinstance(server, AbstractAsyncContextManager):
        server = _watched(server, watch)
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(_client(server, watch, mode))
            connection = _SdkConnection(client, watch)
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                tasks.start_soon(_listen, client)
            yield connection
    except (Exception, BaseExceptionGroup) as error:
        raise await _explained(error, watch) from error


def _client(server: Any, watch: _Watch, mode: str) -> Client:
    """Return a client that offers folders, and neither answers of the model nor forms for the person."""
    observer = watch.observer

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:  # noqa: ARG001
        folders = observer.roots()
        return types.ListRootsResult(
            roots=[types.Root(uri=FileUrl(folder.as_uri()), name=folder.name or str(folder)) for folder in folders]
        )

    async def heard(message: object) -> None:
        if isinstance(message, _CHANGES):
            observer.changed()

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        watch.log(f"{params.level}: {params.data}")

    return Client(
        server,
        mode=mode,
        client_info=_CLIENT,
        list_roots_callback=roots,
        message_handler=heard,
        logging_callback=logged,
        cache=None,
    )


_CHANGES = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)


async def _listen(client: Client) -> None:
    """Ask a server of the protocol without sessions to report changes; one that cannot is asked no more."""
    with suppress(MCPError, ToolError, RuntimeError, TimeoutError):
        async with client.listen(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as changes:
            async for _ in changes:
                pass  # the message handler hears them too


async def _explained(error: BaseException, watch: _Watch) -> UserError:
    """Return the error for a person: of a group the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, UserError)), error.exceptions[0])
    if isinstance(error, UserError):
        return error
    if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
        return ConnectionEndedError(f"It ended while it started: {await watch.reason()}.")
    if isinstance(error, MCPError) and error.code in _OTHER_PROTOCOL and watch.status.last not in _NO_STREAMABLE_HTTP:
        return _OtherProtocolError(
            f"It does not know the handshake: {printable_line(error.error.message[:_MAX_TEXT])}."
        )
    if watch.ending is not None:  # a process
        cause = error.error.message if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"
        return ToolError(f"It does not speak the protocol: {printable_line(cause[:_MAX_TEXT])}.")
    cause, remedy = explained_http(error, watch.status)
    return ToolError(f"It {printable_line(cause[:_MAX_TEXT])}.", remedy)


class _SdkConnection:
    """A `Connection` over the SDK's client."""

    def __init__(self, client: Client, watch: _Watch) -> None:
        self._client = client
        self._watch = watch
        capabilities, about = client.server_capabilities, client.server_info
        self.info = ServerInfo(
            name=printable_line(about.name[:_MAX_TEXT]) if about else "",
            version=printable_line(about.version[:_MAX_TEXT]) if about else "",
            protocol_version=client.protocol_version,
            has_tools=capabilities.tools is not None,
            has_prompts=capabilities.prompts is not None,
            has_resources=capabilities.resources is not None,
        )

    @property
    def n_received(self) -> int:
        return self._watch.n_received

    async def wait_ended(self) -> str:
        await self._watch.ended.wait()
        return await self._watch.reason()

    async def list_tools(self) -> list[object]:
        return await self._pages(self._client.list_tools, "tools")

    async def list_prompts(self) -> list[object]:
        return await self._pages(self._client.list_prompts, "prompts")

    async def list_resources(self) -> list[object]:
        return await self._pages(self._client.list_resources, "resources")

    async def _pages(self, request: Callable[..., Awaitable[Any]], key: str) -> list[object]:
        """Return the entries of all pages: a server that never stops is stopped after a few more than may be listed."""
        entries: list[object] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await self._asked(request(cursor=cursor))
            raw = _dumped(page)
            entries += raw.get(key, [])
            cursor = page.next_cursor
            if cursor is None or len(entries) > MAX_LISTED:
                break
        return entries

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], on_progress: Callable[[ToolProgress], None]
    ) -> Mapping[str, Any]:
        async def told(progress: float, total: float | None, message: str | None) -> None:
            on_progress(ToolProgress(printable_line((message or "")[:_MAX_TEXT]), progress, total))

        result = await self._asked(self._client.call_tool(name, dict(arguments), progress_callback=told))
        return _dumped(result)

    async def read_resource(self, uri: str) -> Mapping[str, Any]:
        return _dumped(await self._asked(self._client.read_resource(uri)))

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]:
        return _dumped(await self._asked(self._client.get_prompt(name, dict(arguments))))

    async def roots_changed(self) -> None:
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await self._client.session.send_notification(types.RootsListChangedNotification())

    async def _asked(self, answer: Awaitable[_T]) -> _T:
        """Await an answer. Raises RefusedError for an error or nonsense, ConnectionEndedError where none can come."""
        try:
            return await answer
        except MCPError as error:
            if (error.code, error.error.message) in _ENDED:
                self._watch.ended.set()
                raise ConnectionEndedError(f"It ended: {await self._watch.reason()}.") from error
            raise RefusedError(f"The server answers: {printable_line(error.error.message[:_MAX_TEXT])}") from error
        except (ValidationError, RuntimeError) as error:
            cause = printable_line(str(error)[:_MAX_TEXT])
            raise RefusedError(f"The server's answer is not valid: {cause}") from error


def _dumped(result: Any) -> Mapping[str, Any]:
    raw: Mapping[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return raw
