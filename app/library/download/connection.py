"""Asking a server for something: redirects by hand, so that the token stays at home, and errors of the network.

What may pass by itself raises a FaultError, what does not a HubError. Knows nothing of what is asked for.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from app.library.download.replies import FaultError
from app.library.hub_access import HubAccess, HubError, next_url

__all__ = ["Connection"]

_MAX_REDIRECTS = 6
_REDIRECTS = {301, 302, 303, 307, 308}
_CERTIFICATE_REMEDY = (
    "Check the clock of this machine. Where a proxy reads along, let SSL_CERT_FILE name its certificate."
)


def _accept(_url: str, _reply: httpx.Response) -> None:
    """Have nothing against any reply."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Several connections, in truth: those of `http`, made as who `access` says we are."""

    http: httpx.AsyncClient
    access: HubAccess

    @asynccontextmanager
    async def answer(
        self, url: str, headers: dict[str, str], check: Callable[[str, httpx.Response], None] = _accept
    ) -> AsyncIterator[httpx.Response]:
        """Give the reply to a GET from wherever redirects lead, its body not yet read; `check` sees each on the way.

        Raises FaultError, also for what breaks while the body is read, and HubError.
        """
        for _ in range(_MAX_REDIRECTS):
            async with self._reply(url, headers) as reply:
                check(url, reply)
                if reply.status_code not in _REDIRECTS:
                    yield reply
                    return
                url = next_url(url, reply.headers.get("Location", ""))
        raise FaultError("it leads in circles", is_stale=True)

    @asynccontextmanager
    async def _reply(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        try:
            async with self.http.stream("GET", url, headers=headers | self.access.headers_for(url)) as reply:
                yield reply
        except (httpx.TransportError, ssl.SSLError) as error:
            if _is_certificate_refused(error):
                cause = f"{httpx.URL(url).host} cannot prove who it is: {error}."
                raise HubError(cause, _CERTIFICATE_REMEDY) from error
            raise FaultError(_reason(error)) from error


def _is_certificate_refused(error: BaseException | None) -> bool:
    """Whether it came of a certificate: that does not pass by itself."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it says nothing"
    return str(error) or type(error).__name__
