"""CORS: what browsers are told about pages that may use the service.

Owns the answer to a preflight and the headers that let an allowed page read its answers. Which pages are allowed is
the setting `origins`; others get no header at all, so that their scripts read nothing.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Scope, Send

MAX_AGE_S = 600
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = "x-localllm-warning, www-authenticate"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")


def is_preflight(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser asks if a page may send a request, before it sends that."""
    return scope.get("method") == "OPTIONS" and "access-control-request-method" in headers


def preflight_response(headers: Headers) -> Response:
    """Return the answer to a preflight of an allowed page: every method, and the headers that it asks for.

    `sending_to_page` adds the rest.
    """
    allowed = {"access-control-allow-methods": _METHODS, "access-control-max-age": str(MAX_AGE_S)}
    if _HEADER_NAMES.fullmatch(wanted := headers.get("access-control-request-headers", "")):
        allowed["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allowed)


def sending_to_page(send: Send, origin: str) -> Send:
    """Return `send` with the headers that let a page of `origin` read the answer."""
    own = {"access-control-allow-origin": origin, "vary": "Origin", "access-control-expose-headers": _EXPOSED}
    extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in own.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return send_with_headers
