"""Logging in to a server by OAuth 2.1, and using what that left.

Two halves that never mix. `log_in` runs the SDK's flow once, when the person asked for it: discovery (RFC 9728, 8414),
registration (RFC 7591) or the client of mcp.json, PKCE, a browser, and a callback on loopback. `StoredLogin` adds the
token to requests and refreshes it; it opens no browser and registers nothing, whatever a server answers.
"""

from __future__ import annotations

import asyncio
import base64
import html
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import httpx2
import mcp_types as types
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError

from app import __version__
from app.common.outbound import tls_context
from app.common.terminal import printable_line
from app.settings.parsing import is_loopback
from app.tools.mcp.config import HttpLaunch, ToolError
from app.tools.mcp.logins import Login, LoginFile
from app.tools.mcp.sdk.transports import BoundedTransport
from quantizer.figures import format_number
from quantizer.system.errors import UserError

LOGIN_TIMEOUT_S = 300.0  # for the person in the browser
_EARLY_S = 30.0  # before it expires, a token is refreshed
_REQUEST_TIMEOUT_S = 30.0
_MAX_CALLBACK_BYTES = 16 << 10
_MAX_TEXT = 200
_CALLBACK_PATH = "/callback"
_ERROR_CODE = re.compile(r'"error"\s*:\s*"([a-z_]{1,40})"')
_UNAUTHORIZED, _METHOD_NOT_ALLOWED = 401, 405
_OWN_REMEDY = "Put a token of it into `headers` in mcp.json, or ask who runs it."
_PAGE = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {n_bytes}\r\n"
    "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n"
)


class StoredLogin(httpx2.Auth):
    """Adds the token of a login to the requests to its server, and refreshes it in time or after a 401. Without a login
    requests go as they are. `problem` says why a token could not be refreshed, "" where none was or it could."""

    def __init__(self, url: str, file: LoginFile) -> None:
        self.problem = ""
        self._url = url
        self._file = file
        self._one_at_a_time = asyncio.Lock()
        self._refreshing: set[asyncio.Task[Login | None]] = set()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        login = await asyncio.to_thread(self._file.read, self._url)
        if login is None or _origin(str(request.url)) != _origin(self._url):
            yield request
            return
        if login.expires_at_s and time.time() > login.expires_at_s - _EARLY_S:
            login = await self._refreshed(login) or login
        request.headers["Authorization"] = f"Bearer {login.access_token}"
        response = yield request
        if response.status_code == _UNAUTHORIZED and (newer := await self._refreshed(login)) is not None:
            request.headers["Authorization"] = f"Bearer {newer.access_token}"
            yield request

    async def _refreshed(self, used: Login) -> Login | None:
        """Return a login with another token than `used`, None where there is none to be had. It goes on where the
        request is cancelled: the former refresh token may be used up by then, and the new one must be kept."""
        refreshing = asyncio.create_task(self._newer(used))
        self._refreshing.add(refreshing)
        refreshing.add_done_callback(self._refreshing.discard)
        return await asyncio.shield(refreshing)

    async def _newer(self, used: Login) -> Login | None:
        async with self._one_at_a_time:
            lock = self._file.locked()
            await asyncio.to_thread(lock.__enter__)  # waits for another process
            try:
                newest = await asyncio.to_thread(self._file.read, self._url)
                if newest is None or newest.access_token != used.access_token:
                    return newest
                if not used.refresh_token:
                    return None
                newer = await self._refresh(used)
                if newer is not None:
                    await asyncio.to_thread(self._file.write, newer)
                return newer
            finally:
                lock.__exit__(None, None, None)

    async def _refresh(self, login: Login) -> Login | None:
        """Ask for new tokens (RFC 6749, section 6)."""
        data = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
        data |= {"resource": login.resource} if login.resource else {}
        headers = {}
        if login.client_secret and login.auth_method == "client_secret_basic":
            pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif login.client_secret:
            data["client_secret"] = login.client_secret
        try:
            async with _client(login.url) as client:
                response = await client.post(login.token_endpoint, data=data, headers=headers)
            if not response.is_success:
                code = _ERROR_CODE.search(response.text)
                self.problem = f"its login could not be renewed ({code.group(1) if code else response.status_code})"
                return None
            tokens = OAuthToken.model_validate_json(response.content)
        except (httpx2.HTTPError, ValidationError, ToolError) as error:
            self.problem = f"its login could not be renewed ({type(error).__name__})"
            return None
        self.problem = ""
        return _with_tokens(login, tokens)


def _with_tokens(login: Login, tokens: OAuthToken) -> Login:
    """Return the login with new tokens; a server may keep the refresh token as it was."""
    return replace(
        login,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token or login.refresh_token,
        expires_at_s=time.time() + tokens.expires_in if tokens.expires_in else 0.0,
    )


async def log_in(
    name: str,
    launch: HttpLaunch,
    show: Callable[[str], Awaitable[None]],
    pasted: Callable[[], Awaitable[str]] | None = None,
    timeout_s: float = LOGIN_TIMEOUT_S,
) -> Login:
    """Return the login of the person to a server, whose variables are replaced. `show` gets the address to open in a
    browser; where that runs elsewhere, `pasted` returns the address to which it was sent. Raises ToolError."""
    callback = _Callback()
    await callback.listen(launch.oauth.callback_port)

    async def redirect(url: str) -> None:
        check_address(url, launch.url)
        await show(url)

    async def answered() -> AuthorizationCodeResult:
        return await callback.result(pasted, timeout_s)

    registration = _Registration(launch, callback.uri)
    metadata = OAuthClientMetadata(
        client_name="localllm", software_version=__version__, redirect_uris=[AnyUrl(callback.uri)]
    )
    provider = OAuthClientProvider(launch.url, metadata, registration, redirect, answered)
    error: BaseException | None = None
    try:
        async with _client(launch.url, provider) as requests:
            await _be_asked(requests, launch)
    except (OAuthFlowError, httpx2.HTTPError, ValidationError, UserError) as raised:
        error = raised
    finally:
        await callback.close(error)
    if error is not None:
        raise _explained(name, error) from error
    tokens, context = registration.tokens, provider.context
    if tokens is None or context.client_info is None:
        raise ToolError(f"The MCP server {name} asks for no login.", "Use it as it is: localllm mcp test.")
    endpoint = context.oauth_metadata.token_endpoint if context.oauth_metadata else urljoin(launch.url, "/token")
    login = Login(
        url=launch.url,
        access_token="",
        token_endpoint=str(endpoint),
        client_id=context.client_info.client_id,
        client_secret=context.client_info.client_secret or "",
        auth_method=context.client_info.token_endpoint_auth_method or "none",
        resource=context.get_resource_url() if context.should_include_resource_param(_PROTOCOL) else "",
    )
    return _with_tokens(login, tokens)


_PROTOCOL = "2025-06-18"  # whose handshake all servers with logins know; since then tokens are for one resource


async def _be_asked(requests: httpx2.AsyncClient, launch: HttpLaunch) -> None:
    """Send what makes a server ask for the login: a handshake, or of the former HTTP form the opening of its stream."""
    handshake = types.InitializeRequest(
        params=types.InitializeRequestParams(
            protocol_version=_PROTOCOL,
            capabilities=types.ClientCapabilities(),
            client_info=types.Implementation(name="localllm", version=__version__),
        )
    )
    body = {"jsonrpc": "2.0", "id": 0, **handshake.model_dump(by_alias=True, mode="json", exclude_none=True)}
    own = {"accept": "application/json, text/event-stream", "mcp-protocol-version": _PROTOCOL}
    headers = {**launch.headers, **own}
    posts = launch.transport != "sse"
    if posts:
        async with requests.stream("POST", launch.url, json=body, headers=headers) as response:
            posts = response.status_code != _METHOD_NOT_ALLOWED
    if not posts:
        async with requests.stream("GET", launch.url, headers=headers) as response:
            pass
    if response.status_code == _UNAUTHORIZED:
        raise ToolError("It still answers 401 after the login.", _OWN_REMEDY)


def _client(server_url: str, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """Return a client for requests to a server and to who vouches for its users; nobody else may be asked."""

    async def check(request: httpx2.Request) -> None:
        check_address(str(request.url), server_url)

    transport = BoundedTransport(httpx2.AsyncHTTPTransport(verify=tls_context()))
    headers = {"accept-encoding": "identity"}
    hooks = {"request": [check]}
    return httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=_REQUEST_TIMEOUT_S, event_hooks=hooks, auth=auth
    )


class _Registration:
    """The SDK's `TokenStorage` for one login, which begins without tokens. Each login registers anew: its callback has
    another port, and many servers compare that. A client of mcp.json stands for one that is registered."""

    def __init__(self, launch: HttpLaunch, callback_uri: str) -> None:
        self.tokens: OAuthToken | None = None
        self._callback_uri = callback_uri
        self._client: OAuthClientInformationFull | None = None
        if launch.oauth.client_id:
            secret = launch.oauth.client_secret or None
            self._client = OAuthClientInformationFull(
                client_id=launch.oauth.client_id,
                client_secret=secret,
                redirect_uris=[AnyUrl(callback_uri)],
                token_endpoint_auth_method="client_secret_post" if secret else "none",
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration. One whose answers would go elsewhere is refused, before a browser is opened."""
        if client_info.redirect_uris and self._callback_uri not in map(str, client_info.redirect_uris):
            raise ToolError("It registered another address than ours for the answer of the browser.", _OWN_REMEDY)
        self._client = client_info


def check_address(url: str, server_url: str) -> None:
    """Raise ToolError for an address of a login to which nobody may be sent: one without encryption, or on this machine
    though the server is not."""
    try:
        parts, server = urlsplit(url), urlsplit(server_url)
    except ValueError:
        parts = server = urlsplit("")
    is_own = is_loopback(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError("It wants to log in at something that is no web address.", _OWN_REMEDY)
    if is_own and not is_loopback(server.hostname or ""):
        raise ToolError("It wants to log in at an address of this machine.", _OWN_REMEDY)
    if parts.scheme == "http" and not is_own and _origin(url) != _origin(server_url):
        raise ToolError(f"It wants to log in at {printable_line(parts.hostname)} without encryption.", _OWN_REMEDY)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _explained(name: str, error: BaseException) -> ToolError:
    """Return the error of a login in a sentence; the SDK's texts have its state and what the server wrote."""
    if isinstance(error, UserError):
        cause, remedy = error.cause, error.remedy
    elif isinstance(error, OAuthTokenError):
        code = _ERROR_CODE.search(str(error))
        cause, remedy = f"It gave no token{f' ({code.group(1)})' if code else ''}.", "Try again."
    elif isinstance(error, OAuthFlowError):
        text = str(error)
        found = next((sentence for part, sentence in _FLOW_ERRORS.items() if part in text), "")
        cause = found or f"Its login failed: {printable_line(text[:_MAX_TEXT])}."
        remedy = _OWN_REMEDY
    elif isinstance(error, ValidationError):
        cause, remedy = "Its login answers in a form that nobody knows.", _OWN_REMEDY
    else:
        cause, remedy = f"Its login cannot be reached: {printable_line(str(error)[:_MAX_TEXT])}.", "Try again later."
    return ToolError(f"No login to the MCP server {name}. {cause}", remedy)


_FLOW_ERRORS = {
    "State parameter mismatch": "The browser brought an answer that belongs to another login (wrong state).",
    "iss mismatch": "The browser brought an answer of another login server than the one asked (wrong issuer).",
    "missing iss": "The browser brought an answer that does not say which login server gave it (no issuer).",
    "metadata issuer mismatch": "Its login server says to be another one (wrong issuer).",
    "Registration failed": "Its login server registers no unknown programs: set `oauth.clientId` in mcp.json.",
}


class _Callback:
    """Where the browser is sent at the end of a login: a server on a free port of loopback that takes one answer."""

    def __init__(self) -> None:
        self.uri = ""
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._pages: list[asyncio.StreamWriter] = []

    async def listen(self, port: int) -> None:
        """Listen on `port`, 0 for any. Raises ToolError where it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_MAX_CALLBACK_BYTES)
        except OSError as error:
            raise ToolError(f"Port {port} for the answer of the browser is taken.", "Change `callbackPort`.") from error
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{_CALLBACK_PATH}"

    async def result(self, pasted: Callable[[], Awaitable[str]] | None, timeout_s: float) -> AuthorizationCodeResult:
        """Return the answer that came, by the browser or `pasted`. Raises ToolError for a refusal or none in time."""
        typed = asyncio.ensure_future(pasted()) if pasted is not None else None
        waiting: set[asyncio.Future[Any]] = {self._answer, *([typed] if typed else [])}
        try:
            done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if typed is not None:
                typed.cancel()  # nothing where it has ended
        if typed is not None and typed in done and not self._answer.done():
            self._take(typed.result())
        if not self._answer.done():
            raise ToolError(f"No answer of the browser came within {format_number(timeout_s)} s.", "Try again.")
        return self._answer.result()

    async def close(self, error: BaseException | None) -> None:
        """Tell the browser how it went, and listen no more."""
        text = "Logged in" if error is None else "Not logged in"
        for writer in self._pages:
            await _write_page(writer, "200 OK", f"localllm: {text}. You can close this page.")
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if self._answer.done() and not self._answer.cancelled():
            self._answer.exception()  # nobody else may have asked
        self._answer.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the answer in the first line of a request; the page is written once the login has ended."""
        target = ""
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            words = head[0].split(" ")
            hosts = [line.partition(":")[2].strip() for line in head[1:] if line.lower().startswith("host:")]
            if len(words) == 3 and words[0] == "GET" and hosts == [urlsplit(self.uri).netloc]:  # no page by rebinding
                target = words[1]
        if not target.startswith(f"{_CALLBACK_PATH}?") or self._answer.done():
            await _write_page(writer, "404 Not Found", "localllm: nothing here.")
            return
        self._pages.append(writer)
        self._take(target)

    def _take(self, address: str) -> None:
        """Take the parameters of the address to which the browser was sent."""
        try:
            values = {
                key: each[0] for key, each in parse_qs(urlsplit(address.strip()).query, max_num_fields=20).items()
            }
        except ValueError:
            values = {}
        if "error" in values:
            refusal = printable_line(f"{values['error']} {values.get('error_description', '')}"[:_MAX_TEXT]).strip()
            self._answer.set_exception(ToolError(f"It was refused: {refusal}.", "Try again."))
        elif not values.get("code"):
            self._answer.set_exception(ToolError("That address has no answer of a login in it.", "Try again."))
        else:
            answer = AuthorizationCodeResult(code=values["code"], state=values.get("state"), iss=values.get("iss"))
            self._answer.set_result(answer)


async def _write_page(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"<!doctype html><title>localllm</title><p>{html.escape(text)}".encode()
    with suppress(OSError):
        writer.write(_PAGE.format(status=status, n_bytes=len(body)).encode() + body)
        await writer.drain()
    writer.close()
