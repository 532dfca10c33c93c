"""Logins to a server of the official package that knows its users: kept, used, refreshed, and refused in a sentence."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from starlette.applications import Starlette

from app.tools.mcp.config import HttpLaunch, OAuthClient, ServerConfig, ToolError
from app.tools.mcp.logins import Login, LoginFile, log_in
from app.tools.mcp.server import McpServer
from app.tools.tool import CallContext
from tests.patience import PATIENCE_S

pytest.importorskip("mcp", reason="the optional extra")

import httpx2
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl

from app.tools.mcp.sdk import oauth


class Accounts:
    """An authorization server that says yes at once. `answer` is what it changes in the parameters with which the
    browser comes back; `extra` what it adds to its metadata."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.valid: dict[str, AccessToken] = {}
        self.refreshable: dict[str, RefreshToken] = {}
        self.answer: dict[str, str] = {}
        self.redirect_port = 0
        self.lifetime_s = 3600
        self.n_refreshed = 0
        self.refuses_refresh = False

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_hex(20),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        self.codes[code.code] = code
        address = str(params.redirect_uri)
        if self.redirect_port:
            address = f"http://127.0.0.1:{self.redirect_port}/callback"
        values = {"code": code.code, "state": params.state, **self.answer}
        return construct_redirect_uri(address, **{key: value for key, value in values.items() if value})

    async def load_authorization_code(self, client: object, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return self._issue(client.client_id)

    async def load_refresh_token(self, client: object, refresh_token: str) -> RefreshToken | None:
        return self.refreshable.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refuses_refresh:
            raise TokenError("invalid_grant", "withdrawn")
        del self.refreshable[refresh_token.token]  # good for one use
        self.n_refreshed += 1
        return self._issue(client.client_id)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.valid.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: object) -> None:
        raise NotImplementedError

    async def exchange_identity_assertion(self, client: object, params: object) -> OAuthToken:
        raise NotImplementedError

    def _issue(self, client_id: str) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(20)}", f"refresh-{secrets.token_hex(20)}"
        expires_at = int(time.time()) + self.lifetime_s
        self.valid[access] = AccessToken(token=access, client_id=client_id, scopes=[], expires_at=expires_at)
        self.refreshable[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=[])
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime_s)


@asynccontextmanager
async def served(accounts: Accounts, change: Callable[[Starlette], Any] = lambda app: app) -> AsyncIterator[str]:
    """Serve notes that only people with an account may read; yield their address."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    notes = MCPServer(
        "notes",
        auth_server_provider=accounts,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(base),
            resource_server_url=AnyHttpUrl(f"{base}/mcp"),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=False,
        ),
    )

    @notes.tool()
    async def search(q: str) -> str:
        """Search notes."""
        return f"found {q}"

    app = change(notes.streamable_http_app(json_response=True))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"{base}/mcp"
    finally:
        server.should_exit = True
        await serving
        listener.close()


browsing: set[asyncio.Task[str]] = set()


@pytest.fixture(autouse=True)
async def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    yield
    await asyncio.gather(*browsing)
    browsing.clear()


async def browse(url: str) -> None:
    """Open `url` as a browser does, and where it leads to."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as browser:
        answer = await browser.get(url)
        assert "location" in answer.headers, answer.text
        browsing.add(asyncio.create_task(_follow(answer.headers["location"])))


async def _follow(url: str) -> str:
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as browser:
        try:
            return (await browser.get(url)).text
        except httpx2.HTTPError:
            return "nobody answers"


def config_for(url: str, **oauth_client: Any) -> ServerConfig:
    return ServerConfig("notes", HttpLaunch(url, oauth=OAuthClient(**oauth_client)))


def server_at(url: str) -> McpServer:
    return McpServer("notes", config_for(url), "mcp.json")


def stored(url: str) -> Login:
    login = LoginFile("notes").read(url)
    assert login is not None
    return login


async def found(server: McpServer) -> str:
    try:
        (tool,) = await server.tools()
        return (await server.call(tool, {"q": "a"}, CallContext())).text
    finally:
        await server.close()


async def test_a_person_logs_in_and_the_server_is_used_with_that() -> None:
    accounts = Accounts()
    async with served(accounts) as url:
        server = server_at(url)
        with pytest.raises(
            ToolError, match=r"answers 401: it wants to know who asks\. Log in: localllm mcp login notes"
        ):
            await server.tools()
        await server.close()
        assert not accounts.clients  # nothing was registered unasked
        await log_in(config_for(url), browse)
        assert await found(server_at(url)) == "found a"
        (page,) = await asyncio.gather(*browsing)
        assert "Logged in" in page
        login = stored(url)
        assert login.access_token in accounts.valid
        assert login.resource == url
        assert login.access_token not in repr(login)
        assert login.refresh_token not in repr(login)
        assert LoginFile("notes").read(url.replace("127.0.0.1", "localhost")) is None  # of another address
        assert LoginFile("notes").remove()
        with pytest.raises(ToolError, match=r"Log in: localllm mcp login notes"):
            await found(server_at(url))


@pytest.mark.skipif(sys.platform == "win32", reason="modes of Unix")
async def test_a_login_is_for_its_owner_only() -> None:
    LoginFile("notes").write(Login("http://h", "token"))
    path = LoginFile("notes").path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.write_text("[]", encoding="utf-8")
    assert LoginFile("notes").read("http://h") is None


@pytest.mark.slow
async def test_a_token_that_expires_is_refreshed_once_for_all_who_need_it() -> None:
    accounts = Accounts()
    accounts.lifetime_s = 1  # so that it counts as expired from the beginning
    async with served(accounts) as url:
        await log_in(config_for(url), browse)
        first = stored(url)
        accounts.lifetime_s = 3600
        assert await asyncio.gather(found(server_at(url)), found(server_at(url))) == ["found a", "found a"]
        assert accounts.n_refreshed == 1
        second = stored(url)
        assert second.access_token != first.access_token
        assert second.refresh_token != first.refresh_token
        assert second.expires_at_s > time.time() + 3000


async def test_tokens_that_come_after_the_request_was_stopped_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        asked.set()
        await answered.wait()
        return httpx2.Response(200, json={"access_token": "new", "refresh_token": "newer"})

    transport = httpx2.MockTransport(answer)
    monkeypatch.setattr(oauth, "_client", lambda _url: httpx2.AsyncClient(transport=transport))
    url = "https://h.example/mcp"
    LoginFile("notes").write(Login(url, "old", "once", 1.0, "https://h.example/token"))
    login = oauth.StoredLogin(url, LoginFile("notes"))
    flow = login.async_auth_flow(httpx2.Request("POST", url))
    request = asyncio.ensure_future(anext(flow))
    await asked.wait()
    request.cancel()
    await asyncio.wait({request})
    answered.set()
    await asyncio.gather(*login._refreshing)
    assert (stored(url).access_token, stored(url).refresh_token) == ("new", "newer")


@pytest.mark.slow
async def test_a_token_that_is_withdrawn_in_the_middle_is_refreshed() -> None:
    accounts = Accounts()
    async with served(accounts) as url:
        await log_in(config_for(url), browse)
        server = server_at(url)
        (tool,) = await server.tools()
        accounts.valid.clear()
        assert (await server.call(tool, {"q": "b"}, CallContext())).text == "found b"
        assert accounts.n_refreshed == 1
        await server.close()


@pytest.mark.slow
async def test_a_login_that_cannot_be_renewed_says_which_command_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("app.tools.mcp.server.log_event", lambda _source, text: lines.append(text))
    monkeypatch.setattr("app.tools.mcp.sdk.transports.log_event", lambda _source, text: lines.append(text))
    accounts = Accounts()
    async with served(accounts) as url:
        await log_in(config_for(url), browse)
        server = server_at(url)
        (tool,) = await server.tools()
        accounts.refuses_refresh = True
        accounts.valid.clear()
        output = await server.call(tool, {"q": "b"}, CallContext())
        assert output.is_error
        sentence = "answers 401: its login could not be renewed (invalid_grant). Log in: localllm mcp login notes"
        assert output.text == f"The server {sentence}"
        await server.close()
        with pytest.raises(ToolError) as refused:
            await found(server_at(url))
        assert str(refused.value) == f"The MCP server notes cannot be started. It {sentence}"
        login = stored(url)
    logged = "\n".join(lines)
    assert login.access_token not in logged
    assert login.refresh_token not in logged
    assert login.client_secret not in logged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"state": "of another login"}, "belongs to another login (wrong state)"),
        ({"iss": "https://evil.example/"}, "of another login server than the one asked (wrong issuer)"),
        ({"code": "unknown"}, "It gave no token (invalid_grant)."),
        (
            {"code": "", "error": "access_denied", "error_description": "no\x1b[2J"},
            "It was refused: access_denied no[2J.",
        ),
    ],
)
async def test_an_answer_of_the_browser_that_is_wrong_logs_nobody_in(answer: dict[str, str], cause: str) -> None:
    accounts = Accounts()
    accounts.answer = answer
    async with served(accounts) as url:
        with pytest.raises(ToolError) as refused:
            await log_in(config_for(url), browse)
        (page,) = await asyncio.gather(*browsing)
        assert LoginFile("notes").read(url) is None
    assert cause in str(refused.value)
    assert "Not logged in" in page
    assert not any(code in str(refused.value) for code in accounts.codes)


@pytest.mark.slow
async def test_an_answer_that_is_sent_to_another_port_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = Accounts()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accounts.redirect_port = listener.getsockname()[1]
    async with served(accounts) as url:
        with pytest.raises(ToolError, match=r"No answer of the browser came within 0\.2 s"):
            await oauth.log_in("notes", HttpLaunch(url), browse, timeout_s=0.2)
        assert await asyncio.gather(*browsing) == ["nobody answers"]


def changing(path: str, **values: Any) -> Callable[[Starlette], Any]:
    """Return a change of an app: `values` stand in the JSON that it returns at `path`."""

    def changed(app: Starlette) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"] != path:
                await app(scope, receive, send)
                return
            parts: list[dict[str, Any]] = []

            async def keep(part: Any) -> None:
                parts.append(part)

            await app(scope, receive, keep)
            body = json.loads(b"".join(part.get("body", b"") for part in parts[1:]))
            data = json.dumps(body | values).encode()
            headers = [pair for pair in parts[0]["headers"] if pair[0] != b"content-length"]
            await send({**parts[0], "headers": [*headers, (b"content-length", str(len(data)).encode())]})
            await send({"type": "http.response.body", "body": data})

        return serve

    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "values", "cause"),
    [
        ("/register", {"redirect_uris": ["http://127.0.0.1:9/callback"]}, "registered another address than ours"),
        ("/.well-known/oauth-authorization-server", {"issuer": "https://evil.example/"}, "another one (wrong issuer)"),
        (
            "/.well-known/oauth-authorization-server",
            {"authorization_endpoint": "http://login.example/a"},
            "log in at login.example without encryption",
        ),
    ],
)
async def test_a_login_server_that_lies_sends_nobody_anywhere(path: str, values: dict[str, Any], cause: str) -> None:
    shown: list[str] = []

    async def show(url: str) -> None:
        shown.append(url)

    async with served(Accounts(), changing(path, **values)) as url:
        with pytest.raises(ToolError) as refused:
            await log_in(config_for(url), show)
    assert cause in str(refused.value)
    assert not shown


async def test_a_server_elsewhere_sends_nobody_to_this_machine() -> None:
    with pytest.raises(ToolError, match=r"at an address of this machine"):
        oauth.check_address("http://127.0.0.1:8080/authorize", "https://h.example/mcp")
    oauth.check_address("https://login.example/authorize", "https://h.example/mcp")


@pytest.mark.slow
async def test_the_address_at_which_the_browser_ended_can_be_pasted() -> None:
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def show(url: str) -> None:
        shown.set_result(url)

    async def pasted() -> str:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as elsewhere:
            answer = await elsewhere.get(await shown)
        return f"{answer.headers['location']}\n"

    async with served(Accounts()) as url:
        await log_in(config_for(url), show, pasted)
        assert stored(url).access_token


@pytest.mark.slow
async def test_a_client_of_mcp_json_is_used_and_none_registered() -> None:
    accounts = Accounts()
    async with served(accounts) as url:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        known = OAuthClientInformationFull(
            client_id="mine",
            client_secret="hidden",
            redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")],
            token_endpoint_auth_method="client_secret_post",
        )
        accounts.clients["mine"] = known
        config = config_for(url, client_id="mine", client_secret="hidden", callback_port=port)
        await log_in(config, browse)
        assert list(accounts.clients) == ["mine"]
        LoginFile("notes").write(replace(stored(url), expires_at_s=1.0))
        assert await found(server_at(url)) == "found a"
        assert accounts.n_refreshed == 1


@pytest.mark.slow
async def test_the_callback_takes_an_answer_of_its_own_address_only() -> None:
    async def show(url: str) -> None:
        (redirect,) = parse_qs(urlsplit(url).query)["redirect_uri"]
        state = parse_qs(urlsplit(url).query)["state"][0]
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as browser:
            query = urlencode({"code": "evil", "state": state})
            rebound = await browser.get(f"{redirect}?{query}", headers={"host": "evil.example"})
            other = await browser.get(redirect.replace("callback", "favicon.ico"))
        assert (rebound.status_code, other.status_code) == (404, 404)
        await browse(url)

    async with served(Accounts()) as url:
        await log_in(config_for(url), show)
        await asyncio.gather(*browsing)


async def test_who_needs_no_login_says_so() -> None:
    open_server = MCPServer("open")
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(open_server.streamable_http_app(), log_config=None, timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        with pytest.raises(ToolError, match=r"asks for no login"):
            await log_in(config_for(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), browse)
    finally:
        server.should_exit = True
        await serving
        listener.close()
    program = replace(config_for("http://h"), launch=None, problem="It is broken.")
    with pytest.raises(ToolError, match=r"No login to the MCP server notes\. It is broken"):
        await log_in(program, browse)
