"""Asking a server for something: redirects by hand, so that the token stays at home, and errors of the network.

What may pass by itself raises a TransientError, what does not a HubError. Knows nothing of what is asked for.

Reading ranges of one remote file.

Owns the link that the hub gave out, which may expire, and the mark of the content in the storage behind it. A read that
fails raises a TransientError; who tries again, and how often, is not known here.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from app.library.download.ranges import Range
from app.library.download.remote_file import RemoteFile
from app.library.download.replies import Expected, TransientError, body_of
from app.library.hub.access import HubAccess, HubError, hub_refusal, redirect_target

__all__ = ["HttpSession", "NoRangesError", "RangeSource", "RemoteChangedError"]

_MAX_REDIRECTS = 6
_REDIRECTS = {301, 302, 303, 307, 308}
_CERTIFICATE_REMEDY = (
    "Check the clock of this machine. Where a proxy reads along, let SSL_CERT_FILE name its certificate."
)


def _accept(_url: str, _reply: httpx.Response) -> None:
    """Have nothing against any reply."""


@dataclass(frozen=True, slots=True)
class HttpSession:
    """Several connections, in truth: those of `http`, made as who `access` says we are."""

    http: httpx.AsyncClient
    access: HubAccess

    @asynccontextmanager
    async def answer(
        self, url: str, headers: dict[str, str], check: Callable[[str, httpx.Response], None] = _accept
    ) -> AsyncIterator[httpx.Response]:
        """Give the reply to a GET from wherever redirects lead, its body not yet read; `check` sees each on the way.

        Raises TransientError, also for what breaks while the body is read, and HubError.
        """
        for _ in range(_MAX_REDIRECTS):
            async with self._reply(url, headers) as reply:
                check(url, reply)
                if reply.status_code not in _REDIRECTS:
                    yield reply
                    return
                url = redirect_target(url, reply.headers.get("Location", ""))
        raise TransientError("it leads in circles", is_stale=True)

    @asynccontextmanager
    async def _reply(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        try:
            async with self.http.stream("GET", url, headers=headers | self.access.headers_for(url)) as reply:
                yield reply
        except (httpx.TransportError, ssl.SSLError) as error:
            if _is_certificate_refused(error):
                cause = f"{httpx.URL(url).host} cannot prove who it is: {error}."
                raise HubError(cause, _CERTIFICATE_REMEDY) from error
            raise TransientError(_reason(error)) from error


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


_N_REFUSED_RANGES = 3


class NoRangesError(Exception):
    """The server sends whole files only."""


class RemoteChangedError(Exception):
    """The hub has another file there now than the one that was asked for."""


class RangeSource:
    """A remote file whose ranges can be read, by several readers at once."""

    def __init__(self, connection: HttpSession, file: RemoteFile) -> None:
        self._connection = connection
        self._file = file
        self._link = file.url
        self._mark = file.mark
        self._n_refused_ranges = 0

    @property
    def mark(self) -> str:
        """The mark of the content that was read last, empty without one."""
        return self._mark

    async def read(self, part: Range) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `part` in order, and no more of a server that sends more.

        Raises TransientError where it ends early, which `learn` should hear of, HubError where the hub refuses, and
        RemoteChangedError.
        """
        async with self._connection.answer(self._link, self._headers(part), self._check) as reply:
            at = self._begin(reply, part)
            async for piece in reply.aiter_raw():
                data = piece[max(part.begin - at, 0) : part.end - at]
                at += len(piece)
                if data:
                    yield data
                if at >= part.end:
                    return
        raise TransientError("it hangs up in the middle")

    def learn(self, fault: TransientError) -> None:
        """Ask otherwise the next time, where that helps. Raises NoRangesError once that is plain."""
        if fault.is_stale:
            self._link, self._mark = self._file.url, self._file.mark
        if fault.has_no_ranges:
            self._n_refused_ranges += 1
            if not self._has_ranges:
                raise NoRangesError from fault

    def _headers(self, part: Range) -> dict[str, str]:
        if not self._has_ranges:
            return {}
        unchanged = {"If-Range": self._mark} if self._mark else {}
        return {"Range": f"bytes={part.begin}-{part.end - 1}", **unchanged}

    def _check(self, url: str, reply: httpx.Response) -> None:
        """Hold what the hub itself says of the file against what it said before."""
        if not self._connection.access.is_hub_url(url):
            return
        if (error := hub_refusal(reply.status_code, reply.headers, self._file.name)) is not None:
            raise error
        linked = reply.headers.get("X-Linked-Etag", "").strip('"')
        if linked and self._file.digest.kind == "sha256" and not self._file.digest.is_met_by(linked):
            raise RemoteChangedError

    def _begin(self, reply: httpx.Response, part: Range) -> int:
        """Where in the file the body begins, once it is known to be of use."""
        asked = part if self._has_ranges else Range(0, self._file.n_bytes)
        body = body_of(reply.status_code, reply.headers, Expected(asked, self._file.n_bytes, self._mark))
        self._link, self._mark = str(reply.url), body.mark
        return body.begin

    @property
    def _has_ranges(self) -> bool:
        return self._n_refused_ranges < _N_REFUSED_RANGES
