"""Checks of HTTP replies to range requests, and the retries after a failure. Pure, but for random waits.

Owns which statuses and headers are trusted, and what a TransientError is.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from app.library.download.ranges import Range

__all__ = [
    "Expected",
    "Retries",
    "RetryPolicy",
    "TransientError",
    "body_of",
    "content_mark",
    "retry_after_s",
]

_PART = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SLOW_DOWN = {408, 425, 429, 500, 502, 503, 504}
_MAX_DIGITS = 6
_MAX_MARK_CHARS = 256
_SETTLED_S = 60.0  # a file that changed within the same second keeps its Last-Modified; clocks may differ


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
    """Return the offset in the file where the body of a reply begins, and the mark of its content, or empty.

    `headers` ignores case. Raises TransientError for a useless reply.
    """
    if status in _SLOW_DOWN:
        raise TransientError(f"it answers {status}", wait_s=retry_after_s(headers))
    if status not in (200, 206):
        raise TransientError(f"it answers {status}", is_stale=True)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise TransientError("it sends the file encoded, which was not requested")
    mark = content_mark(headers)
    if expected.mark and mark != expected.mark:
        raise TransientError("the file there has changed", is_stale=True)
    return _begin_of_part(headers, expected) if status == 206 else _begin_of_whole(headers, expected), mark


def content_mark(headers: Mapping[str, str]) -> str:
    """Return a mark of the exact content for If-Range: a strong etag or a modification date; empty without either.

    A weak etag, or a very recent date, may be that of other bytes too (RFC 9110, 8.8.2.2 and 13.1.5).
    """
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


def _begin_of_whole(headers: Mapping[str, str], expected: Expected) -> int:
    """Accept the whole file for a part at its beginning."""
    length = headers.get("Content-Length", "")
    if length and length != str(expected.n_bytes):
        raise TransientError(f"the file there has {length[:20]} bytes, not {expected.n_bytes:,}", is_stale=True)
    if expected.part.begin > 0:
        raise TransientError("it sends the whole file instead of a part", has_no_ranges=True)
    return 0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits double from `first_wait_s` to `max_wait_s`; after `n_attempts` failures in a row it gives up.

    A Retry-After is respected up to `max_retry_after_s`. A connection silent for `stall_s` counts as dead.
    """

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
        """Reset the count after progress."""
        self.n_faults = 0

    def wait_s(self, fault: TransientError) -> float:
        """Return how long to wait after `fault`. Raises `fault` after the last attempt."""
        self.n_faults += 1
        if self.n_faults >= self._policy.n_attempts or fault.wait_s > self._policy.max_retry_after_s:
            raise fault
        grown = min(self._policy.first_wait_s * 2.0 ** (self.n_faults - 1), self._policy.max_wait_s)
        return max(fault.wait_s, grown * random.uniform(0.5, 1.0))  # so that connections do not retry at once
