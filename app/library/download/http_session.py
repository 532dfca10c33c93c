"""HTTP sessions and reading ranges of a remote file through them.

Owns redirects (followed by hand, so that the token stays at the hub), network errors, the link that the hub gave out,
which may expire, and the mark of the content behind it. A TransientError may pass, a HubError does not; retries belong
to the caller.
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
_N_REFUSED_RANGES = 3
_REDIRECTS = {301, 302, 303, 307, 308}
_CERTIFICATE_REMEDY = (
    "Check the clock of this machine. Behind an intercepting proxy, set SSL_CERT_FILE to its certificate."
)


class NoRangesError(Exception):
    """The server sends whole files only."""


class RemoteChangedError(Exception):
    """The hub has another file there now."""


def _accept(_url: str, _reply: httpx.Response) -> None:
    """Accept any reply."""


@dataclass(frozen=True, slots=True)
class HttpSession:
    """Requests through `http` with the credentials of `access`."""

    http: httpx.AsyncClient
    access: HubAccess

    @asynccontextmanager
    async def get(
        self, url: str, headers: dict[str, str], check: Callable[[str, httpx.Response], None] = _accept
    ) -> AsyncIterator[httpx.Response]:
        """Yield the reply to a GET after redirects, its body unread; `check` is called for each reply on the way.

        Raises TransientError, also while the body is read, and HubError.
        """
        for _ in range(_MAX_REDIRECTS):
            async with self._reply(url, headers) as reply:
                check(url, reply)
                if reply.status_code not in _REDIRECTS:
                    yield reply
                    return
                url = redirect_target(url, reply.headers.get("Location", ""))
        raise TransientError("it redirects too often", is_stale=True)

    @asynccontextmanager
    async def _reply(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        try:
            async with self.http.stream("GET", url, headers=headers | self.access.headers_for(url)) as reply:
                yield reply
        except (httpx.TransportError, ssl.SSLError) as error:
            if _is_certificate_refused(error):
                cause = f"{httpx.URL(url).host} has no valid certificate: {error}."
                raise HubError(cause, _CERTIFICATE_REMEDY) from error
            raise TransientError(_reason(error)) from error


def _is_certificate_refused(error: BaseException | None) -> bool:
    """Return whether a certificate was rejected, which retrying does not change."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer"
    return str(error) or type(error).__name__


class RangeSource:
    """A remote file whose ranges can be read, by several readers at once.

    `mark` is that of the content read last, empty without one.
    """

    def __init__(self, session: HttpSession, file: RemoteFile) -> None:
        self._session = session
        self._file = file
        self._link = file.url
        self.mark = file.mark
        self._n_refused_ranges = 0

    async def read(self, part: Range) -> AsyncGenerator[bytes, None]:
        """Yield exactly the bytes of `part`, in order.

        Raises TransientError where it ends early (pass it to `adapt`), HubError where the hub refuses, and
        RemoteChangedError.
        """
        async with self._session.get(self._link, self._headers(part), self._check) as reply:
            at = self._begin(reply, part)
            async for piece in reply.aiter_raw():
                data = piece[max(part.begin - at, 0) : part.end - at]
                at += len(piece)
                if data:
                    yield data
                if at >= part.end:
                    return
        raise TransientError("it closes the connection early")

    def adapt(self, fault: TransientError) -> None:
        """Change the next request after `fault`. Raises NoRangesError once the server has refused ranges often."""
        if fault.is_stale:
            self._link, self.mark = self._file.url, self._file.mark
        if fault.has_no_ranges:
            self._n_refused_ranges += 1
            if not self._has_ranges:
                raise NoRangesError from fault

    def _headers(self, part: Range) -> dict[str, str]:
        if not self._has_ranges:
            return {}
        unchanged = {"If-Range": self.mark} if self.mark else {}
        return {"Range": f"bytes={part.begin}-{part.end - 1}", **unchanged}

    def _check(self, url: str, reply: httpx.Response) -> None:
        """Compare the hub's own reply with what it answered before."""
        if not self._session.access.is_hub_url(url):
            return
        if (error := hub_refusal(reply.status_code, reply.headers, self._file.name)) is not None:
            raise error
        linked = reply.headers.get("X-Linked-Etag", "").strip('"')
        if linked and self._file.digest.kind == "sha256" and not self._file.digest.is_met_by(linked):
            raise RemoteChangedError

    def _begin(self, reply: httpx.Response, part: Range) -> int:
        """Return the offset in the file where the body begins, after checking the reply."""
        requested = part if self._has_ranges else Range(0, self._file.n_bytes)
        begin, mark = body_of(reply.status_code, reply.headers, Expected(requested, self._file.n_bytes, self.mark))
        self._link, self.mark = str(reply.url), mark
        return begin

    @property
    def _has_ranges(self) -> bool:
        return self._n_refused_ranges < _N_REFUSED_RANGES
