"""Connections to servers through the official package `mcp`, which only this folder imports.

Owns how a server is reached, the form in which it asks of us (folders, forms, answers of the model), and that of its
errors. Import it when a server starts: the package takes more than a second.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError

from app import __version__
from app.common.terminal import printable_line
from app.protocol.chat import Message
from app.tools.mcp.config import Launch, ServerConfig, StdioLaunch, ToolError, expanded
from app.tools.mcp.connection import Connection, ConnectionEndedError, Observer, RefusedError, ServerInfo
from app.tools.mcp.listing import MAX_LISTED, block_text
from app.tools.mcp.logins import LoginFile, login_command
from app.tools.mcp.sdk.oauth import StoredLogin
from app.tools.mcp.sdk.transports import (
    MAX_TEXT,
    REFUSED_STATUSES,
    Watch,
    explained_http,
    http,
    sse,
    stdio,
    watched,
)
from app.tools.server_requests import SamplingRequest
from app.tools.tool import ToolProgress
from quantizer.system.errors import UserError

_MAX_PAGES = 50
_OTHER_PROTOCOL = (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND)
_NO_STREAMABLE_HTTP = (400, 404, 405)  # what servers of the former HTTP form answer to it
_ENDED = ((types.CONNECTION_CLOSED, "Connection closed"), (types.INVALID_REQUEST, "Session terminated"))
_CLIENT = types.Implementation(name="localllm", version=__version__)
_T = TypeVar("_T")


@asynccontextmanager
async def connect(config: ServerConfig, observer: Observer) -> AsyncIterator[Connection]:
    """Open the connection to a server of `mcp.json`. Raises ToolError where that does not succeed. The handshake that
    all servers up to 2025 know is tried first: some end at any other first message. One that knows only the later
    protocol says so, and is asked in that. An address whose kind the file does not tell is tried as streamable HTTP,
    and as SSE where it refuses that."""
    assert config.launch is not None
    launch = expanded(config.launch, os.environ)
    async with AsyncExitStack() as stack:
        try:
            connection = await _entered(stack, config.name, launch, observer, "legacy")
        except _OtherProtocolError:
            connection = await _entered(stack, config.name, launch, observer, "auto")
        yield connection


class _OtherProtocolError(ToolError):
    """The server does not know the handshake of the protocols up to 2025."""


async def _entered(stack: AsyncExitStack, name: str, launch: Launch, observer: Observer, mode: str) -> Connection:
    if isinstance(launch, StdioLaunch):
        watch = Watch(observer)
        return await stack.enter_async_context(connect_to(stdio(launch, watch), watch, mode))
    if any(header.lower() == "authorization" for header in launch.headers):
        login, remedy = None, "Put its token into `headers` in mcp.json."
    else:
        login = StoredLogin(launch.url, LoginFile(name))
        remedy = f"Log in: {login_command(name)}"

    def new_watch() -> Watch:
        return Watch(observer, remedy, lambda: login.problem if login is not None else "")

    watch = new_watch()
    if launch.transport == "sse":
        return await stack.enter_async_context(connect_to(sse(launch, watch, login), watch, mode))
    try:
        return await stack.enter_async_context(connect_to(http(launch, watch, login), watch, mode))
    except ToolError as error:
        if launch.transport or watch.http_status not in _NO_STREAMABLE_HTTP:
            raise
        watch = new_watch()
        try:
            return await stack.enter_async_context(connect_to(sse(launch, watch, login), watch, "legacy"))
        except ToolError:
            raise error from None


@asynccontextmanager
async def connect_to(server: Any, watch: Watch | Observer, mode: str = "auto") -> AsyncIterator[Connection]:
    """Open a connection over a transport, or in tests to a server of the SDK in this process. Raises ToolError."""
    if not isinstance(watch, Watch):
        watch = Watch(watch)
    elif isinstance(server, AbstractAsyncContextManager):
        server = watched(server, watch)
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


def _client(server: Any, watch: Watch, mode: str) -> Client:
    """Return a client that offers what `Observer` has."""
    callbacks = _Callbacks(watch)
    return Client(
        server,
        mode=mode,
        client_info=_CLIENT,
        list_roots_callback=callbacks.roots,
        elicitation_callback=callbacks.elicit,
        sampling_callback=callbacks.sample,
        message_handler=callbacks.heard,
        logging_callback=callbacks.logged,
        cache=None,
    )


class _Callbacks:
    """What the SDK calls for a server: each passes it on to the observer, and brings the answer into the protocol's
    form."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._observer = watch.observer

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:  # noqa: ARG002
        folders = self._observer.roots()
        return types.ListRootsResult(
            roots=[types.Root(uri=FileUrl(folder.as_uri()), name=folder.name or str(folder)) for folder in folders]
        )

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        try:
            if isinstance(params, types.ElicitRequestURLParams):
                is_agreed = await self._observer.agree_to_address(params.message, params.url)
                return types.ElicitResult(action="accept" if is_agreed else "decline")
            values = await self._observer.fill(params.message, params.requested_schema)
        except UserError as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=error.cause)
        if values is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content=dict(values))

    async def sample(
        self,
        context: ClientRequestContext,  # noqa: ARG002
        params: types.CreateMessageRequestParams,
    ) -> types.CreateMessageResult | types.ErrorData:
        request = SamplingRequest(
            messages=tuple(Message(each.role, _sampled_text(each)) for each in params.messages),
            system=params.system_prompt or "",
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            stop=tuple(params.stop_sequences or ()),
        )
        try:
            answer = await self._observer.sample(request)
        except UserError as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=error.cause)
        content = types.TextContent(type="text", text=answer.text)
        reason = "maxTokens" if answer.is_cut else "endTurn"
        return types.CreateMessageResult(role="assistant", content=content, model=answer.model, stop_reason=reason)

    async def heard(self, message: object) -> None:
        if isinstance(message, _CHANGES):
            self._observer.changed()

    async def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        self._watch.log(f"{params.level}: {params.data}")


def _sampled_text(message: types.SamplingMessage) -> str:
    """Return the text of a message for the model; what is no text is named, as in results."""
    return "\n".join(block_text(_dumped(block)) for block in message.content_as_list)


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


async def _explained(error: BaseException, watch: Watch) -> UserError:
    """Return the error for a person: of a group the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, UserError)), error.exceptions[0])
    if isinstance(error, UserError):
        return error
    if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
        return ConnectionEndedError(f"It ended while it started: {await watch.reason()}.")
    if isinstance(error, MCPError) and error.code in _OTHER_PROTOCOL and watch.http_status not in _NO_STREAMABLE_HTTP:
        return _OtherProtocolError(f"It does not know the handshake: {printable_line(error.error.message[:MAX_TEXT])}.")
    if watch.ending is not None:  # a process
        cause = error.error.message if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"
        return ToolError(f"It does not speak the protocol: {printable_line(cause[:MAX_TEXT])}.")
    cause, remedy = explained_http(error, watch)
    return ToolError(f"It {printable_line(cause[:MAX_TEXT])}.", remedy)


class _SdkConnection:
    """A `Connection` over the SDK's client."""

    def __init__(self, client: Client, watch: Watch) -> None:
        self._client = client
        self._watch = watch
        capabilities, about = client.server_capabilities, client.server_info
        self.info = ServerInfo(
            name=printable_line(about.name[:MAX_TEXT]) if about else "",
            version=printable_line(about.version[:MAX_TEXT]) if about else "",
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
        """Return the entries of all pages as the server wrote them, whatever their form: a server that never stops is
        stopped after a few more than may be listed. An empty cursor ends the pages too, as some servers write it."""
        entries: list[object] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            self._watch.listed[key] = []
            try:
                page = await self._asked(request(cursor=cursor))
            finally:
                as_written = self._watch.listed.pop(key)
            entries += as_written or _dumped(page).get(key, [])  # nothing passes of a server in this process
            cursor = page.next_cursor
            if not cursor or len(entries) > MAX_LISTED:
                break
        return entries

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], on_progress: Callable[[ToolProgress], None]
    ) -> Mapping[str, Any]:
        async def told(progress: float, total: float | None, message: str | None) -> None:
            on_progress(ToolProgress(printable_line((message or "")[:MAX_TEXT]), progress, total))

        return _dumped(await self._asked(self._client.call_tool(name, dict(arguments), progress_callback=told)))

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
            if self._watch.http_status in REFUSED_STATUSES:  # such as a login that ended meanwhile
                cause, remedy = self._watch.refusal(self._watch.http_status)
                raise RefusedError(f"The server {cause}.", remedy) from error
            if error.code == types.URL_ELICITATION_REQUIRED:
                raise RefusedError(f"The server wants you to open an address first. {_addresses(error)}") from error
            raise RefusedError(f"The server answers: {printable_line(error.error.message[:MAX_TEXT])}") from error
        except (ValidationError, RuntimeError) as error:
            cause = printable_line(str(error)[:MAX_TEXT])
            raise RefusedError(f"The server's answer is not valid: {cause}") from error


def _addresses(error: MCPError) -> str:
    try:
        wanted = types.ElicitationRequiredErrorData.model_validate(error.error.data).elicitations
    except ValidationError:
        return "It does not say which."
    return " ".join(printable_line(f"{each.message[:MAX_TEXT]} {each.url[:MAX_TEXT]}") for each in wanted[:3])


def _dumped(result: Any) -> Mapping[str, Any]:
    raw: Mapping[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return raw
