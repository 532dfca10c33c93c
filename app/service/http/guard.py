"""Access control of the service: the first thing that handles a request.

Owns the checks of Host, Origin, API key and body size, and the scope that a path needs. A web page that the user has
open can reach a port of this machine, so a request must look like one from a program, not like one from a browser.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.keys import ALL_SCOPES, KeyFile, KeyScope, key_file
from app.service.http.errors import ErrorBody, RefusedError, openai_error, status_of
from app.service.http.streaming import JsonResponse
from app.settings.parsing import is_loopback
from app.settings.settings import Settings
from quantizer.errors import UserError

__all__ = ["Guard", "GuardPolicy", "policy_of", "scopes_for"]

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_KEY = "first"
_INFER, _MANAGE = frozenset({KeyScope.INFER}), frozenset({KeyScope.MANAGE})

# The first that fits counts; one with a slash at its end includes all paths below. Without scopes no key is needed.
_SCOPES: tuple[tuple[str, frozenset[KeyScope]], ...] = (
    ("/health", frozenset()),  # contains no data; polled by process supervisors without a key
    ("/api/localllm/status", ALL_SCOPES),
    ("/api/localllm/", _MANAGE),
    ("/api/blobs/", _MANAGE),
    ("/api/copy", _MANAGE),
    ("/api/create", _MANAGE),
    ("/api/delete", _MANAGE),
    ("/api/pull", _MANAGE),
    ("/api/push", _MANAGE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """Which requests are accepted. `any_address` accepts an IP address as Host: a web page can rebind only names."""

    hosts: frozenset[str] = _LOOPBACK_NAMES
    any_address: bool = False
    origins: frozenset[str] = frozenset()
    api_key: str = ""
    stored: KeyFile | None = None
    max_body_bytes: int = 16 << 20  # as much text as is tokenized

    @property
    def requires_key(self) -> bool:
        """Whether a key is required: `api_key`, which has every scope, or a `stored` one."""
        return bool(self.api_key) or self.stored is not None

    def scopes_of(self, secret: str) -> frozenset[KeyScope]:
        """Return the scopes of the key `secret`, none for an unknown one. Raises StorageError."""
        scopes = self.stored.scopes_of(secret) if self.stored else frozenset[KeyScope]()
        is_configured = bool(self.api_key) and hmac.compare_digest(secret.encode(), self.api_key.encode())
        return ALL_SCOPES if is_configured else scopes


def policy_of(settings: Settings) -> GuardPolicy:
    """Return the policy for `settings`: requests from other machines need a key of the settings or of the key file.

    An empty key file gets its first key. Raises StorageError where it cannot be used.
    """
    is_local = is_loopback(settings.host)
    stored = key_file(settings) if settings.api_key or not is_local else None
    if stored is not None and not settings.api_key:
        stored.first(_FIRST_KEY)
    names = {settings.host} if is_local else {settings.host, socket.gethostname()}
    return GuardPolicy(
        hosts=_LOOPBACK_NAMES | {name.lower() for name in names},
        any_address=not is_local,
        origins=frozenset(origin for part in settings.origins.split(",") if (origin := part.strip())),
        api_key=settings.api_key,
        stored=stored,
    )


class Guard:
    """ASGI middleware that refuses what `policy` does not accept, with a body by `error_body_of`."""

    def __init__(
        self,
        app: ASGIApp,
        policy: GuardPolicy,
        error_body_of: Callable[[str], ErrorBody] = lambda _path: openai_error,
    ) -> None:
        self._app = app
        self._policy = policy
        self._error_body_of = error_body_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check(scope, self._policy)
        except UserError as refusal:
            status = status_of(refusal)
            response = JsonResponse(self._error_body_of(scope["path"])(refusal), status)
            if status == 401:
                response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, _counted(receive, self._policy.max_body_bytes), send)


def check(scope: Scope, policy: GuardPolicy) -> None:
    """Raise RefusedError where `policy` does not accept the request, StorageError for an unusable key file."""
    headers = Headers(scope=scope)
    _check_host(headers, policy)
    _check_origin(headers, policy)
    if policy.requires_key:
        _check_key(headers, policy, scopes_for(scope["path"]))
    length = _one(headers, "content-length")
    if length.isdecimal() and int(length[:20]) > policy.max_body_bytes:
        raise _too_large(policy.max_body_bytes)


def scopes_for(path: str) -> frozenset[KeyScope]:
    """Return the scopes of which a key needs one for `path`, empty where no key is needed."""
    return next(
        (scopes for prefix, scopes in _SCOPES if path == prefix or (prefix.endswith("/") and path.startswith(prefix))),
        _INFER,
    )


def _check_host(headers: Headers, policy: GuardPolicy) -> None:
    host = _host_name(_one(headers, "host"))
    if host not in policy.hosts and not (policy.any_address and _is_address(host)):
        raise RefusedError(
            403, "host_not_allowed", f"The Host {host!r} is not a name of this service.", "Use localhost."
        )


def _check_origin(headers: Headers, policy: GuardPolicy) -> None:
    """Check what browsers send: Origin with requests that change something, Sec-Fetch-Site with all."""
    foreign = [origin for origin in headers.getlist("origin") if origin not in policy.origins]
    is_cross_site = _one(headers, "sec-fetch-site") in {"cross-site", "same-site"} and "origin" not in headers
    if foreign or is_cross_site:
        cause = "Web pages may not use this service."
        raise RefusedError(403, "origin_not_allowed", cause, "Name the page's origin in LOCALLLM_ORIGINS to let it in.")


def _check_key(headers: Headers, policy: GuardPolicy, wanted: frozenset[KeyScope]) -> None:
    if not wanted:
        return
    scheme, _, token = _one(headers, "authorization").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" and token.strip() else _one(headers, "x-api-key")
    scopes = policy.scopes_of(given)
    if not scopes:
        raise RefusedError(401, "invalid_api_key", "The API key is missing or wrong.", "Send it as a Bearer token.")
    if not wanted & scopes:
        (missing,) = wanted
        cause = f"This key does not have the scope {missing}."
        raise RefusedError(403, "insufficient_scope", cause, f"Create one: `localllm key new NAME --scope {missing}`.")


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
