"""Access control of the service: the first thing that handles a request.

Checks Host, Origin, API key, its scope, and body size. A web page that the user has open can reach a port of this
machine, so a request must look like one from a program, come from a page of the setting `origins`, or have a key.
So can other users of this machine: where no key is required, a request must come from a process of this user.
Those pages get CORS headers; others get none, so that their scripts read nothing.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.common.event_log import log_event
from app.common.keys import ALL_SCOPES, KeyFile, KeyScope, is_secret, key_file, owner_of
from app.common.service_identity import IDENTITY_PATH, STOP_PATH
from app.service.http.access_log import MeteredKeys, RequestRecord, record_of
from app.service.http.errors import ErrorBody, RefusedError, openai_error, status_of
from app.service.http.streaming import JsonResponse
from app.settings.parsing import (
    NO_ORIGINS,
    Origins,
    entry_for,
    is_host_name,
    is_loopback,
    parse_host_names,
    parse_origins,
)
from app.settings.settings import Settings
from quantizer.system.errors import UserError
from quantizer.system.sockets import NOBODY, Address, connected_user

MAX_AGE_S = 600
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = "x-localllm-warning, www-authenticate"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_KEY = "first"
_ROOT = 0  # may read this user's files anyway, and passes on what comes to a container's port
_MOST_LOGGED = 100
_INFER, _MANAGE = frozenset({KeyScope.INFER}), frozenset({KeyScope.MANAGE})

# The first that fits counts; one with a slash at its end includes all paths below. Without scopes no key is needed.
_SCOPES: tuple[tuple[str, frozenset[KeyScope]], ...] = (
    ("/health", frozenset()),  # contains no data; polled by process supervisors without a key
    ("/lmstudio-greeting", frozenset()),  # nor does this, by which LM Studio's SDK finds a service
    (STOP_PATH, frozenset()),  # requires a proof
    (IDENTITY_PATH, frozenset()),  # nor this, by which our clients recognise it before they send their key
    ("/api/localllm/status", ALL_SCOPES),
    ("/api/localllm/", _MANAGE),
    ("/mcp", _MANAGE),  # of `localllm mcp serve`: it searches the person's chats and documents
    ("/api/blobs/", _MANAGE),
    ("/api/copy", _MANAGE),
    ("/api/create", _MANAGE),
    ("/api/delete", _MANAGE),
    ("/api/pull", _MANAGE),
    ("/api/push", _MANAGE),
    ("/api/v1/models/", _MANAGE),  # load, unload, download; the list itself is /api/v1/models
)
_FORM_BYTES = 64 << 10  # around the file
# A file goes to disk as it comes, and is as large as OpenAI's Batch API takes (source: its guide, 200 MB), a sound as
# three hours of a CD are.
_MAX_UPLOAD_BYTES = {
    **dict.fromkeys(("/v1/files", "/files"), (200 << 20) + _FORM_BYTES),
    **dict.fromkeys(
        (f"{version}/audio/{task}" for version in ("/v1", "") for task in ("transcriptions", "translations")),
        (2 << 30) + _FORM_BYTES,
    ),
}
_GRANTED_KEY = "localllm.granted"  # scopes of the key of a request
_SOCKET_KEY = "localllm.socket_key"  # scopes of a handshake, and the policy's `scopes_of` for its first message


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """Which requests are accepted. `any_address` accepts an IP address as Host: a web page can rebind only names. Where
    a key is required, one with a valid key may have any name as Host: a rebound page has none. `metered` are the
    temporary keys, which may ask models and whose requests are counted, also where no key is required."""

    hosts: frozenset[str] = _LOOPBACK_NAMES
    any_address: bool = False
    origins: Origins = NO_ORIGINS
    api_key: str = ""
    stored: KeyFile | None = None
    max_body_bytes: int = 64 << 20  # with pictures and sounds; of text `routing` takes less
    metered: MeteredKeys = field(default_factory=MeteredKeys)
    # Whose processes may ask where no key is required, None for everybody's; where the system does not say whose a
    # process is, it may.
    users: frozenset[int] | None = None
    user_of: Callable[[Address, Address], int | None] = connected_user

    @property
    def requires_key(self) -> bool:
        return bool(self.api_key) or self.stored is not None

    def scopes_of(self, secret: str) -> frozenset[KeyScope]:
        """Return the scopes of the key `secret`, none for an unknown one. Raises StorageError."""
        if self.metered.of_secret(secret):
            return _INFER
        scopes = self.stored.scopes_of(secret) if self.stored else frozenset[KeyScope]()
        is_configured = bool(self.api_key) and is_secret(secret, self.api_key)
        return ALL_SCOPES if is_configured else scopes


def policy_of(settings: Settings) -> GuardPolicy:
    """Return the policy for `settings`: requests from other machines need a key of the settings or of the key file. An
    empty key file gets its first key. Raises StorageError where it cannot be used, UsageError for invalid `hosts` or
    `origins`."""
    is_local = is_loopback(settings.host)
    own, origins = parse_host_names(settings.hosts), parse_origins(settings.origins)
    stored = key_file(settings) if settings.api_key or not is_local else None
    if stored is not None and not settings.api_key:
        stored.first(_FIRST_KEY)
    names = {settings.host} if is_local else {settings.host, socket.gethostname()}
    return GuardPolicy(
        hosts=_LOOPBACK_NAMES | {name.lower() for name in (*names, *own)},
        any_address=not is_local,
        origins=origins,
        api_key=settings.api_key,
        stored=stored,
        users=None if sys.platform == "win32" else frozenset({os.geteuid(), _ROOT}),
    )


def socket_scopes(scope: Scope, *secrets: str) -> frozenset[KeyScope]:
    """Return the scopes of a websocket that the guard let pass, or else of the `secrets` in its first message. Raises
    RefusedError (401) where a key is required and neither has one, StorageError for an unusable key file."""
    granted: frozenset[KeyScope] = scope[_SOCKET_KEY][0]
    scopes_of: Callable[[str], frozenset[KeyScope]] = scope[_SOCKET_KEY][1]
    if granted:
        return granted
    for secret in secrets:
        if scopes := scopes_of(secret):
            _belongs_to(record_of(scope), secret)
            return scopes
    raise _missing_key()


def _belongs_to(record: RequestRecord, key: str) -> None:
    """Note who holds the `key` of a request, by a name from which nobody learns it."""
    lent_by = record.meter.owner if record.meter is not None else ""
    record.owner = lent_by or owner_of(key)
    record.client = f"key {record.owner}"


class Guard:
    """ASGI middleware that refuses what `policy` does not accept, with a body by `error_body_of`.

    It answers the preflights of allowed pages, and lets them read every answer. Each other origin is logged once.
    A websocket passes the same checks, but may send its key in its first message, for clients that cannot set headers:
    its route asks `socket_scopes` before anything else.
    """

    def __init__(
        self,
        app: ASGIApp,
        policy: GuardPolicy,
        error_body_of: Callable[[Scope], ErrorBody] = lambda _scope: openai_error,
    ) -> None:
        self._app = app
        self._policy = policy
        self._error_body_of = error_body_of
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if origin := _allowed_origin(headers, self._policy):
            send = sending_to_page(send, origin)
        try:
            check(scope, self._policy)
        except UserError as refusal:
            self._log(headers)
            status = status_of(refusal)
            response = JsonResponse(self._error_body_of(scope)(refusal), status)
            if status == 401:
                response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        if origin and is_preflight(scope, headers):
            # `sending_to_page` adds the rest.
            allowed = {"access-control-allow-methods": _METHODS, "access-control-max-age": str(MAX_AGE_S)}
            if _HEADER_NAMES.fullmatch(wanted := headers.get("access-control-request-headers", "")):
                allowed["access-control-allow-headers"] = wanted
            if headers.get("access-control-request-private-network") == "true":
                allowed["access-control-allow-private-network"] = "true"
            await Response(status_code=204, headers=allowed)(scope, receive, send)
            return
        record, key = record_of(scope), _given_key(headers)
        record.meter = self._policy.metered.of_secret(key)
        # A key that nobody asked for may be another one in each request.
        if key and (self._policy.requires_key or record.meter is not None):
            _belongs_to(record, key)
        else:
            record.client = f"at {_address(scope)}"
        if scope["type"] == "http":
            record.receive = receive = _counted(receive, _most_bytes(scope, self._policy))
        await self._app(scope, receive, send)

    def _log(self, headers: Headers) -> None:
        for origin in headers.getlist("origin"):  # its script cannot read why it is refused
            entry = "" if self._policy.origins.allow(origin) else entry_for(origin)
            if entry and entry not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(entry)
                log_event("service", f"A web page of {origin} was refused. To let it in, {_named(entry)}.")


def check(scope: Scope, policy: GuardPolicy) -> None:
    """Raise RefusedError where `policy` does not accept the request, StorageError for an unusable key file."""
    headers = Headers(scope=scope)
    # A preflight has no key. An allowed page learns from it that it may send the request, which needs its key.
    is_preflight_of_page = is_preflight(scope, headers) and bool(_allowed_origin(headers, policy))
    if not (is_preflight_of_page and policy.requires_key):
        _check_host(headers, policy)
    _check_origin(headers, policy)
    if scope["type"] == "websocket":
        given = _given_key(headers)
        scopes = policy.scopes_of(given) if policy.requires_key else ALL_SCOPES
        if given and not scopes:  # without any, its first message may have one
            raise _missing_key()
        scope[_SOCKET_KEY] = (scopes, policy.scopes_of)
    elif policy.requires_key and not is_preflight_of_page:
        scope[_GRANTED_KEY] = _check_key(headers, policy, scope["path"])
    if not policy.requires_key:
        _check_user(scope, policy)
    length = _one(headers, "content-length")
    if length.isdecimal() and int(length[:20]) > (most := _most_bytes(scope, policy)):
        raise _too_large(most)


def _check_user(scope: Scope, policy: GuardPolicy) -> None:
    """Check whose process asks: every user of this machine can reach a port of it."""
    own, peer = scope.get("server"), scope.get("client")
    if policy.users is None or not own or not peer or own[1] is None or not _scopes_for(scope["path"]):
        return
    user = policy.user_of((own[0], own[1]), (peer[0], peer[1]))
    if user is None or user in policy.users:
        return
    cause = "This service answers processes of its own user only, and this request is another user's."
    if user == NOBODY:
        cause = "The client closed the connection before its request was read."
    raise RefusedError(403, "another_user", cause, "Its user can set an API key for others (LOCALLLM_API_KEY).")


def is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope.get("method") == "OPTIONS" and "access-control-request-method" in headers


def sending_to_page(send: Send, origin: str) -> Send:
    """Return `send` with the headers that let a page of `origin` read the answer."""
    own = {"access-control-allow-origin": origin, "vary": "Origin", "access-control-expose-headers": _EXPOSED}
    extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in own.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return send_with_headers


def _check_host(headers: Headers, policy: GuardPolicy) -> None:
    host = _host_name(_one(headers, "host"))
    if host in policy.hosts or (policy.any_address and _is_address(host)):
        return
    is_name = is_host_name(host) or _is_address(host)
    if is_name and policy.requires_key and policy.scopes_of(_given_key(headers)):
        return
    cause = f"The Host {host!r} is not a name of this service."
    with_key = ", send a valid API key" if policy.requires_key else ""
    own = f", or add the name to the setting hosts (LOCALLLM_HOSTS={host})" if is_host_name(host) else ""
    raise RefusedError(403, "host_not_allowed", cause, f"Use localhost{with_key}{own}.")


def _check_origin(headers: Headers, policy: GuardPolicy) -> None:
    """Check what browsers send: Origin with requests that change something, Sec-Fetch-Site with all."""
    foreign = [origin for origin in headers.getlist("origin") if not policy.origins.allow(origin)]
    is_cross_site = _one(headers, "sec-fetch-site") in {"cross-site", "same-site"} and "origin" not in headers
    if foreign or is_cross_site:
        entry = entry_for(foreign[0]) if foreign else ""
        remedy = f"To let it in, {_named(entry)}." if entry else "Name the page's origin in LOCALLLM_ORIGINS."
        raise RefusedError(403, "origin_not_allowed", "Web pages may not use this service.", remedy)


def _named(entry: str) -> str:
    return f"add {entry} to the setting origins (LOCALLLM_ORIGINS)"


def _allowed_origin(headers: Headers, policy: GuardPolicy) -> str:
    origin = _one(headers, "origin")
    return origin if origin and policy.origins.allow(origin) else ""


def require_manage(scope: Scope) -> None:
    """Raise RefusedError where the key of a request, checked already, may only use models."""
    if not may_manage(scope):
        raise _insufficient(KeyScope.MANAGE)


def may_manage(scope: Scope) -> bool:
    return KeyScope.MANAGE in scope.get(_GRANTED_KEY, ALL_SCOPES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for what is stored: the `owner` of what it makes, and whether it `sees_all`, also what others made."""

    owner: str = ""
    sees_all: bool = True

    def sees(self, owner: str) -> bool:
        return self.sees_all or owner == self.owner


SERVICE = Caller()


def caller_of(scope: Scope) -> Caller:
    """Return who asks: a key that may only use models sees what it made itself, as other people may have such keys."""
    return Caller(record_of(scope).owner, sees_all=may_manage(scope))


def _insufficient(missing: KeyScope) -> RefusedError:
    cause = f"This key does not have the scope {missing}."
    return RefusedError(403, "insufficient_scope", cause, f"Create one: `localllm key new NAME --scope {missing}`.")


def _check_key(headers: Headers, policy: GuardPolicy, path: str) -> frozenset[KeyScope]:
    """Return the scopes of the key of a request."""
    wanted = _scopes_for(path)
    if not wanted:
        return frozenset()
    scopes = policy.scopes_of(_given_key(headers))
    if not scopes:
        raise _missing_key()
    if not wanted & scopes:
        (missing,) = wanted
        raise _insufficient(missing)
    return scopes


def _scopes_for(path: str) -> frozenset[KeyScope]:
    """Return the scopes of which a request has to have one; none where it needs no key."""
    return next(
        (scopes for prefix, scopes in _SCOPES if path == prefix or (prefix.endswith("/") and path.startswith(prefix))),
        _INFER,
    )


def _given_key(headers: Headers) -> str:
    scheme, _, token = _one(headers, "authorization").partition(" ")
    is_bearer = scheme.lower() == "bearer" and token.strip()
    return token.strip() if is_bearer else _one(headers, "x-api-key")


def _address(scope: Scope) -> str:
    """Return the address of the other end, of IPv6 the network that one host or home has; "" for a socket file."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return str(host)
    return str(ipaddress.ip_network(f"{address}/64", strict=False)) if address.version == 6 else str(address)


def _missing_key() -> RefusedError:
    return RefusedError(401, "invalid_api_key", "The API key is missing or wrong.", "Send it as a Bearer token.")


def _one(headers: Headers, name: str) -> str:
    """Return the only value of a header, empty for one that comes twice."""
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else ""


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name.lower() if bracket and (not port or port[1:].isdecimal()) else ""
    name, colon, port = host.partition(":")
    return name.lower() if not colon or port.isdecimal() else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _most_bytes(scope: Scope, policy: GuardPolicy) -> int:
    uploads = _MAX_UPLOAD_BYTES if scope.get("method") == "POST" else {}
    return uploads.get(scope["path"], policy.max_body_bytes)


def _counted(receive: Receive, max_bytes: int) -> Receive:
    n_bytes = 0

    async def counting() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > max_bytes:
            raise _too_large(max_bytes)
        return message

    return counting


def _too_large(max_bytes: int) -> RefusedError:
    return RefusedError(
        413, "body_too_large", f"The request's body is larger than {max_bytes >> 20} MiB.", "Send less."
    )
