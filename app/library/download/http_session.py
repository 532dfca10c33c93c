"""HTTP sessions, reading ranges of a remote file through them, and the waits between retries.

Owns redirects (followed by hand, so that the token stays at the hub), network errors, which statuses and headers are
trusted, the link that the hub gave out, which may expire, and the mark of the content behind it. A TransientError may
pass, a HubError does not; to try again is the caller's.
"""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from app.library.download.remote_file import Range, RemoteFile
from app.library.hub.access import HubAccess, certificate_error, redirect_target

_MAX_REDIRECTS = 6
_N_REFUSED_RANGES = 3
_REDIRECTS = {301, 302, 303, 307, 308}
_PART = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SLOW_DOWN = {408, 425, 429, 500, 502, 503, 504}
_MAX_DIGITS = 6
_MAX_MARK_CHARS = 256
_SETTLED_S = 60.0  # a file that changed within the same second keeps its Last-Modified; clocks may differ


class NoRangesError(Exception):
    """The server sends whole files only."""


class RemoteChangedError(Exception):
    """The hub has another file there now."""


@dataclass(frozen=True, slots=True)
class HttpSession:
    """Requests through `http` with the credentials of `access`."""

    http: httpx.AsyncClient
    access: HubAccess

    @asynccontextmanager
    async def get(
        self, url: str, headers: dict[str, str], check: Callable[[str, httpx.Response], None] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Yield the reply to a GET after redirects, its body unread; `check` is called for each reply on the way.
        Raises TransientError, also while the body is read, and HubError."""
        for _ in range(_MAX_REDIRECTS):
            async with self._reply(url, headers) as reply:
                if check is not None:
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
            if (refused := certificate_error(url, error)) is not None:
                raise refused from error
            silent = isinstance(error, httpx.TimeoutException)
            raise TransientError("it does not answer" if silent else str(error) or type(error).__name__) from error


class RangeSource:
    """A remote file whose ranges can be read, by several readers at once. `mark` is that of the content read last,
    empty without one."""

    def __init__(self, session: HttpSession, file: RemoteFile) -> None:
        self._session = session
        self._file = file
        self._link = file.url
        self.mark = file.mark
        self._n_refused_ranges = 0

    async def read(self, part: Range) -> AsyncGenerator[bytes, None]:
        """Yield exactly the bytes of `part`, in order. Raises TransientError where it ends early (pass it to `adapt`),
        HubError where the hub refuses, and RemoteChangedError."""
        headers, requested = {}, Range(0, self._file.n_bytes)
        if self._has_ranges:
            requested = part
            headers = {"Range": f"bytes={part.begin}-{part.end - 1}"}
            if self.mark:  # without If-Range a file that was replaced meanwhile would go on in the middle
                headers["If-Range"] = self.mark
        async with self._session.get(self._link, headers, self._check) as reply:
            at, mark = body_of(reply.status_code, reply.headers, Expected(requested, self._file.n_bytes, self.mark))
            self._link, self.mark = str(reply.url), mark
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

    def _check(self, url: str, reply: httpx.Response) -> None:
        """Compare the hub's own reply with what it answered before."""
        if not self._session.access.is_hub_url(url):
            return
        error = self._session.access.refusal(url, reply.status_code, reply.headers, self._file.name)
        if error is not None:
            raise error
        linked = reply.headers.get("X-Linked-Etag", "").strip('"')
        if linked and self._file.digest.kind == "sha256" and not self._file.digest.is_met_by(linked):
            raise RemoteChangedError

    @property
    def _has_ranges(self) -> bool:
        return self._n_refused_ranges < _N_REFUSED_RANGES


class TransientError(Exception):
    """A failure that may pass; after one that `is_stale` the link must be requested again."""

    def __init__(
        self, reason: str, *, wait_s: float = 0.0, is_stale: bool = False, has_no_ranges: bool = False
    ) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.is_stale = is_stale
        self.has_no_ranges = has_no_ranges


@dataclass(frozen=True, slots=True)
class Expected:
    """The expectation of a reply: the requested range, the length of the file, and the mark of its content."""

    part: Range
    n_bytes: int
    mark: str = ""


def body_of(status: int, headers: Mapping[str, str], expected: Expected) -> tuple[int, str]:
    """Return the offset in the file where the body of a reply begins, and the mark of its content, or empty. `headers`
    ignores case. Raises TransientError for a useless reply."""
    if status in _SLOW_DOWN:
        raise TransientError(f"it answers {status}", wait_s=retry_after_s(headers))
    if status not in (200, 206):
        raise TransientError(f"it answers {status}", is_stale=True)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise TransientError("it sends the file encoded, which was not requested")
    mark = content_mark(headers)
    if expected.mark and mark != expected.mark:
        raise TransientError("the file there has changed", is_stale=True)
    if status == 206:
        return _begin_of_part(headers, expected), mark
    # The whole file will do for a part at its beginning.
    length = headers.get("Content-Length", "")
    if length and length != str(expected.n_bytes):
        raise TransientError(f"the file there has {length[:20]} bytes, not {expected.n_bytes:,}", is_stale=True)
    if expected.part.begin > 0:
        raise TransientError("it sends the whole file instead of a part", has_no_ranges=True)
    return 0, mark


def content_mark(headers: Mapping[str, str]) -> str:
    """Return a mark of the exact content for If-Range: a strong etag or a modification date; empty without either. A
    weak etag, or a very recent date, may be that of other bytes too (RFC 9110, 8.8.2.2 and 13.1.5)."""
    etag, changed = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if etag:
        return etag if etag.startswith('"') and len(etag) < _MAX_MARK_CHARS else ""
    changed_s, sent_s = _seconds(changed), _seconds(headers.get("Date", ""))
    return changed if changed_s is not None and sent_s is not None and sent_s - changed_s >= _SETTLED_S else ""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of Retry-After, which may be a date; 0 without one."""
    value = headers.get("Retry-After", "")
    if value.isascii() and value.isdecimal():
        return float(value) if len(value) <= _MAX_DIGITS else 0.0
    until_s, sent_s = _seconds(value), _seconds(headers.get("Date", ""))
    now_s = time.time() if sent_s is None else sent_s  # by the server's own clock
    return 0.0 if until_s is None else max(0.0, until_s - now_s)


def _seconds(date: str) -> float | None:
    """Return an HTTP date as seconds since 1970, None for an invalid one."""
    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()  # HTTP dates are in GMT


def _begin_of_part(headers: Mapping[str, str], expected: Expected) -> int:
    match = _PART.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        raise TransientError("it sends a part without Content-Range")
    begin, last, n_bytes = (int(number) for number in match.groups())
    if n_bytes != expected.n_bytes:
        raise TransientError(f"the file there has {n_bytes:,} bytes, not {expected.n_bytes:,}", is_stale=True)
    if begin != expected.part.begin or not begin <= last < expected.part.end:
        raise TransientError("it sends another part than the requested one")
    return begin


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits double from `first_wait_s` to `max_wait_s`; after `n_attempts` failures in a row it gives up. A Retry-After
    is respected up to `max_retry_after_s`. A connection silent for `stall_s` counts as dead."""

    n_attempts: int = 9
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0
    max_retry_after_s: float = 300.0
    stall_s: float = 30.0


class Retries:
    """The retries of one operation. `n_faults` counts failures since the last progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.n_faults = 0
        self._policy = policy

    def progressed(self) -> None:
        self.n_faults = 0

    def wait_s(self, fault: TransientError) -> float:
        """Return how long to wait after `fault`. Raises `fault` after the last attempt."""
        self.n_faults += 1
        if self.n_faults >= self._policy.n_attempts or fault.wait_s > self._policy.max_retry_after_s:
            raise fault
        grown = min(self._policy.first_wait_s * 2.0 ** (self.n_faults - 1), self._policy.max_wait_s)
        return max(fault.wait_s, grown * random.uniform(0.5, 1.0))  # so that connections do not retry at once
