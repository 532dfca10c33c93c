from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from app.common.event_log import log_to
from app.common.keys import ALL_SCOPES, KeyFile, KeyScope, own_key
from app.service.application import _ROUTE_MODULES
from app.service.http.access_log import RequestRecord, record_of
from app.service.http.errors import RefusedError
from app.service.http.guard import Guard, GuardPolicy, check, may_manage, policy_of, require_manage
from app.service.http.routing import Route
from app.service.http.streaming import JsonResponse
from app.settings.parsing import is_loopback
from app.settings.settings import Settings
from quantizer.system.errors import StorageError, UsageError
from quantizer.system.sockets import NOBODY, Address


def _scope(*headers: tuple[str, str], path: str = "/v1/models") -> dict[str, Any]:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "path": path, "headers": raw}


def _status(policy: GuardPolicy, *headers: tuple[str, str], path: str = "/v1/models") -> int:
    try:
        check(_scope(*headers, path=path), policy)
    except RefusedError as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:11500", "LOCALHOST:80", "127.0.0.1:11500", "127.0.0.1", "[::1]:11500", "[::1]"]
)
def test_loopback_names_are_accepted_on_any_port(host: str) -> None:
    assert _status(GuardPolicy(), ("host", host)) == 200


_EVIL = ("evil.example", "evil.example:11500", "localhost.evil.example", "127.0.0.1.evil.example")
_MALFORMED = ("", "127.0.0.1@evil.example", "localhost:evil", "localhost:80:80", "localhost:", "[::1", "[::1]evil")


@pytest.mark.parametrize(
    "host", [*_EVIL, *_MALFORMED, "[::1]:x", "::1", "192.168.1.5:11500", "localhost, evil.example"]
)
def test_other_hosts_are_refused(host: str) -> None:
    assert _status(GuardPolicy(), ("host", host)) == 403


async def _record(policy: GuardPolicy, address: str, key: str) -> RequestRecord:
    scope = _scope(("host", "localhost"), ("authorization", f"Bearer {key}")) | {"client": (address, 1)}

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None: ...

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await Guard(app, policy)(scope, receive, receive)  # type: ignore[arg-type]
    return record_of(scope)


async def test_a_client_is_its_address_where_no_key_is_required_whatever_key_it_sends() -> None:
    policy = GuardPolicy()
    assert (await _record(policy, "192.0.2.1", "a")).client == (await _record(policy, "192.0.2.1", "b")).client
    assert (await _record(policy, "192.0.2.1", "a")).client != (await _record(policy, "192.0.2.2", "a")).client
    same = [(await _record(policy, f"2001:db8:1:2::{host}", "")).client for host in (1, 2)]
    assert same[0] == same[1]


async def test_a_client_is_its_key_where_one_is_required() -> None:
    policy = GuardPolicy(api_key="secret")
    record = await _record(policy, "192.0.2.1", "secret")
    assert record.client == (await _record(policy, "192.0.2.2", "secret")).client
    assert "secret" not in record.client
    assert record.receive is not None


def test_a_missing_or_doubled_host_is_refused() -> None:
    assert _status(GuardPolicy()) == 403
    assert _status(GuardPolicy(), ("host", "localhost"), ("host", "localhost")) == 403


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40))
def test_no_host_but_the_listed_names_passes(host: str) -> None:
    name = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host.lower()
    if name not in {"localhost", "127.0.0.1", "[::1]"}:
        assert _status(GuardPolicy(), ("host", host)) == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "", "http://127.0.0.1:11500"]
)
def test_every_origin_is_refused_unless_configured(origin: str) -> None:
    assert _status(GuardPolicy(), ("host", "localhost"), ("origin", origin)) == 403


def test_a_configured_origin_is_accepted() -> None:
    policy = policy_of(Settings(origins="http://localhost:3000, http://localhost:4000"))
    assert _status(policy, ("host", "localhost"), ("origin", "http://localhost:4000")) == 200
    both = (("origin", "http://localhost:4000"), ("origin", "https://evil.example"))
    assert _status(policy, ("host", "localhost"), *both) == 403


@pytest.mark.parametrize(
    "host", ["host.docker.internal:11500", "workstation.local", "ollama", "box.tailnet.ts.net:11500"]
)
def test_a_valid_key_is_enough_for_any_name_of_this_machine(tmp_path: Path, host: str) -> None:
    """What Open WebUI in a container sends to a service with `--host 0.0.0.0`: Host host.docker.internal and a key."""
    settings = Settings(host="0.0.0.0", data_dir=tmp_path)
    policy, key = policy_of(settings), ("authorization", f"Bearer {own_key(settings)}")
    assert _status(policy, ("host", host), key) == 200
    assert _status(policy, ("host", host)) == 403
    assert _status(policy, ("host", host), ("authorization", "Bearer wrong")) == 403
    assert _status(policy, ("host", host), key, ("origin", "https://evil.example")) == 403


@pytest.mark.parametrize("host", ["", "localhost, evil.example", "evil.example@localhost", "localhost:80:80", "a b"])
def test_no_key_makes_up_for_a_malformed_host(host: str) -> None:
    assert _status(GuardPolicy(api_key="sesame"), ("host", host), ("x-api-key", "sesame")) == 403


def test_names_of_the_setting_hosts_are_accepted_without_a_key() -> None:
    """What a container sends to a service on the loopback address, to which a proxy of this machine forwards."""
    policy = policy_of(Settings(hosts="host.docker.internal, Workstation.local"))
    assert _status(policy, ("host", "host.docker.internal:11500")) == 200
    assert _status(policy, ("host", "workstation.LOCAL")) == 200
    assert _status(policy, ("host", "evil.example")) == 403
    assert _status(policy, ("host", "evil.workstation.local")) == 403


@pytest.mark.parametrize("text", ["*", "http://pc.local", "pc.local:11500", "*.local", "pc..local", "a b"])
def test_the_setting_hosts_takes_names_only(text: str) -> None:
    with pytest.raises(UsageError, match="is not a host name"):
        policy_of(Settings(hosts=text))


def test_the_refusal_of_a_host_says_how_to_accept_it() -> None:
    with pytest.raises(RefusedError, match=r"LOCALLLM_HOSTS=pc\.local") as keyless:
        check(_scope(("host", "pc.local:11500")), GuardPolicy())
    assert "key" not in str(keyless.value), "there is none"
    with pytest.raises(RefusedError, match="send a valid API key"):
        check(_scope(("host", "pc.local:11500")), GuardPolicy(api_key="sesame"))


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("none", 200)])
def test_a_page_without_origin_is_recognised_by_its_fetch_metadata(site: str, status: int) -> None:
    assert _status(GuardPolicy(), ("host", "localhost"), ("sec-fetch-site", site)) == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (("authorization", "Bearer sesame"), 200),
        (("authorization", "bearer sesame"), 200),
        (("x-api-key", "sesame"), 200),
        (("authorization", "Bearer wrong"), 401),
        (("authorization", "Bearer "), 401),
        (("authorization", "Basic sesame"), 401),
        (("x-api-key", "sesam\xe9"), 401),
        (("x-other", "sesame"), 401),
    ],
)
def test_a_key_is_accepted_as_bearer_or_x_api_key(header: tuple[str, str], status: int) -> None:
    assert _status(GuardPolicy(api_key="sesame"), ("host", "localhost"), header) == status


def test_without_a_key_any_bearer_is_accepted() -> None:
    assert _status(GuardPolicy(), ("host", "localhost"), ("authorization", "Bearer ")) == 200


def test_health_needs_no_key_but_a_host() -> None:
    policy = GuardPolicy(api_key="sesame")
    assert _status(policy, ("host", "localhost"), path="/health") == 200
    assert _status(policy, ("host", "evil.example"), path="/health") == 403


def test_a_declared_length_over_the_cap_is_refused_before_it_is_read() -> None:
    policy = GuardPolicy(max_body_bytes=100)
    assert _status(policy, ("host", "localhost"), ("content-length", "100")) == 200
    assert _status(policy, ("host", "localhost"), ("content-length", "101")) == 413
    assert _status(policy, ("host", "localhost"), ("content-length", "9" * 5000)) == 413


@pytest.mark.parametrize(
    ("path", "n_bytes", "status"),
    [
        ("/v1/files", 200 << 20, 200),
        ("/files", 200 << 20, 200),
        ("/v1/files", 201 << 20, 413),
        ("/v1/files/a", 65 << 20, 413),
        ("/v1/audio/transcriptions", 2 << 30, 200),
        ("/audio/translations", 2 << 30, 200),
        ("/v1/audio/transcriptions", 2049 << 20, 413),
    ],
)
def test_an_upload_has_a_cap_of_its_own(path: str, n_bytes: int, status: int) -> None:
    scope = _scope(("host", "localhost"), ("content-length", str(n_bytes)), path=path)
    refusal = pytest.raises(RefusedError, match=r"larger than (2048|200|64) MiB") if status == 413 else nullcontext()
    with refusal:
        check({**scope, "method": "POST"}, GuardPolicy())


BEYOND = ("host", "192.168.1.5:11500")
PATHS = [route.path for surface in _ROUTE_MODULES for route in surface.router.routes if isinstance(route, Route)]
MANAGING = {path for path in PATHS if path.startswith(("/api/localllm/", "/api/v1/models/"))} - {
    "/api/localllm/status"
} | {f"/api/{verb}" for verb in ("pull", "push", "create", "copy", "delete")}


@pytest.fixture
def stored(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def test_listening_beyond_this_machine_creates_and_requires_a_key(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", data_dir=tmp_path)
    policy = policy_of(settings)
    assert _status(policy, BEYOND) == 401
    key = ("x-api-key", own_key(settings))
    assert _status(policy, BEYOND, key) == 200
    assert _status(policy, ("host", "rebound.example")) == 403
    assert _status(policy, ("host", "rebound.example"), ("x-api-key", "wrong")) == 403
    assert policy_of(settings).scopes_of(key[1]) == ALL_SCOPES, "the same one serves next time"


def test_a_key_of_the_settings_has_every_scope_beside_those_of_the_file(tmp_path: Path) -> None:
    policy = policy_of(Settings(host="0.0.0.0", api_key="sesame", data_dir=tmp_path))
    assert not (tmp_path / "keys.json").exists()
    assert _status(policy, BEYOND, ("x-api-key", "sesame"), path="/api/localllm/load") == 200
    laptop = KeyFile(tmp_path / "keys.json").add("laptop", [KeyScope.INFER])
    assert _status(policy, BEYOND, ("x-api-key", laptop.secret)) == 200


def test_on_loopback_keys_of_the_file_are_not_required(tmp_path: Path, stored: KeyFile) -> None:
    stored.add("laptop", [KeyScope.INFER])
    assert _status(policy_of(Settings(data_dir=tmp_path)), ("host", "localhost"), path="/api/localllm/load") == 200


ENDS = {"server": ("127.0.0.1", 11500), "client": ("127.0.0.1", 40_000)}
OTHER_USER = 4711


def _status_of(user: int | None, policy: GuardPolicy, *headers: tuple[str, str], path: str = "/v1/models") -> int:
    asked = []

    def user_of(own: Address, peer: Address) -> int | None:
        asked.append((own, peer))
        return user

    scope = {**_scope(("host", "localhost"), *headers, path=path), **ENDS}
    try:
        check(scope, replace(policy, user_of=user_of))
    except RefusedError as refusal:
        return refusal.status if refusal.code == "another_user" else 0
    finally:
        assert asked in ([], [(ENDS["server"], ENDS["client"])])
    return 200


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no user ids")
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/api/localllm/jobs", "/api/delete", "/props"])
def test_without_a_key_another_user_of_this_machine_is_refused(tmp_path: Path, path: str) -> None:
    policy = policy_of(Settings(data_dir=tmp_path))
    for user, status in ((os.geteuid(), 200), (0, 200), (None, 200), (OTHER_USER, 403), (NOBODY, 403)):
        assert _status_of(user, policy, path=path) == status
    socket_scope = {**_scope(("host", "localhost"), path="/llm"), **ENDS, "type": "websocket"}
    with pytest.raises(RefusedError, match="own user only"):
        check(socket_scope, replace(policy, user_of=lambda *_: OTHER_USER))


def test_with_a_key_and_for_what_needs_none_every_user_of_this_machine_is_let_in(tmp_path: Path) -> None:
    keyed = policy_of(Settings(data_dir=tmp_path, api_key="sesame"))
    assert _status_of(OTHER_USER, keyed, ("x-api-key", "sesame")) == 200
    for path in ("/health", "/lmstudio-greeting", "/api/localllm/identity", "/api/localllm/stop"):
        assert _status_of(OTHER_USER, policy_of(Settings(data_dir=tmp_path)), path=path) == 200
    unix_socket = {**_scope(("host", "localhost")), "server": ("/run/a.sock", None), "client": None}
    check(unix_socket, policy_of(Settings(data_dir=tmp_path)))


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_every_route_requires_its_scope(stored: KeyFile, path: str) -> None:
    policy = GuardPolicy(stored=stored)
    keys = {scope: ("x-api-key", stored.add(scope, [scope]).secret) for scope in KeyScope}
    found = {scope: _status(policy, ("host", "localhost"), key, path=path) for scope, key in keys.items()}
    needed = KeyScope.MANAGE if path in MANAGING else KeyScope.INFER
    is_open = path in {"/health", "/lmstudio-greeting", "/api/localllm/identity", "/api/localllm/stop"}
    is_for_any = is_open or path == "/api/localllm/status"
    wanted = {scope: 200 if scope is needed or is_for_any else 403 for scope in KeyScope}
    assert found == wanted
    assert _status(policy, ("host", "localhost"), path=path) == (200 if is_open else 401)


@pytest.mark.parametrize(
    ("scopes", "may"), [([KeyScope.INFER], False), ([KeyScope.INFER, KeyScope.MANAGE], True), (None, True)]
)
def test_only_a_key_that_manages_unloads_a_model_by_a_route_that_asks_it(
    stored: KeyFile, scopes: list[KeyScope] | None, may: bool
) -> None:
    """Ollama's `keep_alive` is a field of what every client sends. Where no key is required everybody may."""
    key = ("x-api-key", stored.add("laptop", scopes).secret) if scopes else ("accept", "*/*")
    scope = _scope(("host", "localhost"), key, path="/api/generate")
    check(scope, GuardPolicy(stored=stored) if scopes else GuardPolicy())

    assert may_manage(scope) is may
    with nullcontext() if may else pytest.raises(RefusedError, match="does not have the scope manage"):
        require_manage(scope)


def test_a_removed_key_is_refused_at_once(stored: KeyFile) -> None:
    policy = GuardPolicy(stored=stored)
    key = ("x-api-key", stored.add("laptop", [KeyScope.INFER]).secret)
    assert _status(policy, ("host", "localhost"), key) == 200
    stored.remove("laptop")
    assert _status(policy, ("host", "localhost"), key) == 401


def test_a_damaged_key_file_accepts_nobody(stored: KeyFile, tmp_path: Path) -> None:
    stored.add("laptop", ALL_SCOPES)
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        _status(GuardPolicy(stored=stored), ("host", "localhost"), ("x-api-key", ""))


@pytest.mark.parametrize(
    ("host", "is_so"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("pc", False)],
)
def test_loopback_addresses_are_recognised(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so


PAGE = "app://obsidian.md"
# What Chromium sends before a page's JSON request with a key.
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "cross-site",
}


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await JsonResponse({"path": scope["path"]})(scope, receive, send)


def _client(policy: GuardPolicy, base_url: str = "http://localhost:11500") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(Guard(_app, policy)), base_url=base_url)


def _cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


async def _exchange(
    policy: GuardPolicy, method: str, headers: dict[str, str], base_url: str = "http://localhost:11500"
) -> httpx.Response:
    async with _client(policy, base_url) as client:
        return await client.request(method, "/v1/chat/completions", headers=headers)


async def test_an_allowed_page_is_told_so_before_it_sends() -> None:
    response = await _exchange(policy_of(Settings(origins="app")), "OPTIONS", PREFLIGHT)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-private-network" not in response.headers
    assert "access-control-allow-credentials" not in response.headers


async def test_an_allowed_page_may_reach_into_the_private_network() -> None:
    asked = PREFLIGHT | {"Access-Control-Request-Private-Network": "true"}
    response = await _exchange(policy_of(Settings(origins="app")), "OPTIONS", asked)
    assert response.headers["access-control-allow-private-network"] == "true"


async def test_an_allowed_page_reads_answers_and_errors() -> None:
    policy = GuardPolicy(origins=policy_of(Settings(origins="app")).origins, api_key="sesame")
    whole = await _exchange(policy, "POST", {"Origin": PAGE, "Authorization": "Bearer sesame"})
    refused = await _exchange(policy, "POST", {"Origin": PAGE})
    assert (whole.status_code, refused.status_code) == (200, 401)
    for response in (whole, refused):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "x-localllm-warning" in response.headers["access-control-expose-headers"]


async def test_a_preflight_needs_no_key_but_the_request_after_it_does() -> None:
    policy = GuardPolicy(origins=policy_of(Settings(origins="app")).origins, api_key="sesame")
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT)).status_code == 204
    away = "http://workstation.local:11500"
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT, away)).status_code == 204
    assert (await _exchange(policy, "POST", {"Origin": PAGE}, away)).status_code == 403
    with_key = {"Origin": PAGE, "Authorization": "Bearer sesame"}
    assert (await _exchange(policy, "POST", with_key, away)).status_code == 200


async def test_a_preflight_to_a_foreign_host_without_keys_is_refused() -> None:
    policy = policy_of(Settings(origins="app"))
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT, "http://evil.example")).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "app://obsidian.md, https://evil.example", "tauri://x"]
)
async def test_another_page_is_refused_without_a_header_for_its_browser(origin: str) -> None:
    policy = policy_of(Settings(origins="app"))
    for method, headers in (("OPTIONS", PREFLIGHT), ("POST", {}), ("GET", {})):
        response = await _exchange(policy, method, headers | {"Origin": origin})
        assert response.status_code == 403
        assert not _cors(response)
        assert "vary" not in response.headers


async def test_a_program_gets_no_headers_for_browsers() -> None:
    response = await _exchange(policy_of(Settings(origins="app")), "POST", {})
    assert response.status_code == 200
    assert not _cors(response)


async def test_odd_header_names_are_not_repeated() -> None:
    asked = PREFLIGHT | {"Access-Control-Request-Headers": "x: y"}
    assert (
        "access-control-allow-headers"
        not in (await _exchange(policy_of(Settings(origins="app")), "OPTIONS", asked)).headers
    )


async def test_a_refusal_names_the_entry_that_lets_the_page_in() -> None:
    """What Obsidian's pages send; the answer says what to set, and so does the log, once."""
    output = io.StringIO()
    handler = log_to(output)
    try:
        async with _client(GuardPolicy()) as client:
            refusals: list[Any] = [
                (await client.post("/api/chat", headers={"Origin": origin})).json()["error"]["message"]
                for origin in (PAGE, PAGE, "https://chat.example")
            ]
    finally:
        logging.getLogger("localllm").removeHandler(handler)
    assert refusals[0] == refusals[1]
    assert "add app to the setting origins (LOCALLLM_ORIGINS)" in refusals[0]
    assert "add https://chat.example to" in refusals[2]
    logged = output.getvalue()
    assert logged.count(PAGE) == 1
    assert "https://chat.example" in logged
