"""What a reply to a request for a range of bytes is worth. Pure.

Owns which statuses and headers are believed. A fault is one that may pass: whoever asked tries again.

How often something that failed is tried again, and after how long. Pure but for chance.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from app.library.download.ranges import Range

__all__ = [
    "Expected",
    "RangeBody",
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
    """What may go well another time; `is_stale` tells that the link should be asked for anew."""

    def __init__(
        self, reason: str, *, wait_s: float = 0.0, is_stale: bool = False, has_no_ranges: bool = False
    ) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.is_stale = is_stale
        self.has_no_ranges = has_no_ranges


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known before the reply: the range asked for, the length of the file, and the mark of its content there or
    empty."""

    part: Range
    n_bytes: int
    mark: str = ""


@dataclass(frozen=True, slots=True)
class RangeBody:
    """Where in the file the body of a reply begins, and the mark that it came with or empty."""

    begin: int
    mark: str


def body_of(status: int, headers: Mapping[str, str], expected: Expected) -> RangeBody:
    """Return what the body of a reply is. `headers` finds names in any case. Raises TransientError for one of no use."""
    if status in _SLOW_DOWN:
        raise TransientError(f"it answers {status}", wait_s=retry_after_s(headers))
    if status not in (200, 206):
        raise TransientError(f"it answers {status}", is_stale=True)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise TransientError("it sends the file encoded, which was not asked for")
    mark = content_mark(headers)
    if expected.mark and mark != expected.mark:
        raise TransientError("the file there has changed", is_stale=True)
    return RangeBody(_begin_of_part(headers, expected) if status == 206 else _begin_of_whole(headers, expected), mark)


def content_mark(headers: Mapping[str, str]) -> str:
    """Return what marks these very bytes, fit for If-Range: a strong etag, or when they changed; empty without either.

    A weak etag would do for other bytes too, and so would a change a moment ago (RFC 9110, 8.8.2.2 and 13.1.5).
    """
    etag, changed = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if etag:
        return etag if etag.startswith('"') and len(etag) < _MAX_MARK_CHARS else ""
    changed_s, sent_s = _seconds(changed), _seconds(headers.get("Date", ""))
    return changed if changed_s is not None and sent_s is not None and sent_s - changed_s >= _SETTLED_S else ""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how long a server asks to be left alone, 0 where it does not say: in seconds, or until a date."""
    said = headers.get("Retry-After", "")
    if said.isascii() and said.isdecimal():
        return float(said) if len(said) <= _MAX_DIGITS else 0.0
    until_s, sent_s = _seconds(said), _seconds(headers.get("Date", ""))
    now_s = time.time() if sent_s is None else sent_s  # by its own clock, which is the one that it reckons with
    return 0.0 if until_s is None else max(0.0, until_s - now_s)


def _seconds(date: str) -> float | None:
    """A date of HTTP as seconds since 1970, None for what is none."""
    try:
        said = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    return _since_1970(said)


def _since_1970(date: datetime) -> float:
    """Dates of HTTP are in GMT, which one without a zone leaves unsaid."""
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _begin_of_part(headers: Mapping[str, str], expected: Expected) -> int:
    match = _PART.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        raise TransientError("it does not say which part it sends")
    begin, last, n_bytes = (int(number) for number in match.groups())
    if n_bytes != expected.n_bytes:
        raise TransientError(f"the file there has {n_bytes:,} bytes, not {expected.n_bytes:,}", is_stale=True)
    if begin != expected.part.begin or not begin <= last < expected.part.end:
        raise TransientError("it sends another part than was asked for")
    return begin


def _begin_of_whole(headers: Mapping[str, str], expected: Expected) -> int:
    """The whole file is as good as a part at its beginning, and better than nothing elsewhere."""
    said = headers.get("Content-Length", "")
    if said and said != str(expected.n_bytes):
        raise TransientError(f"the file there has {said[:20]} bytes, not {expected.n_bytes:,}", is_stale=True)
    if expected.part.begin > 0:
        raise TransientError("it sends the whole file where a part was asked for", has_no_ranges=True)
    return 0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits grow from `first_wait_s` by doubling to `max_wait_s`; after `n_attempts` in vain it is given up.

    A server that asks for more time gets it, up to `max_retry_after_s`. A connection that says nothing for `stall_s` is
    taken for dead.
    """

    n_attempts: int = 9
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0
    max_retry_after_s: float = 300.0
    stall_s: float = 30.0


class Retries:
    """The attempts at one thing. `n_faults` counts those in vain since there was progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.n_faults = 0
        self._policy = policy

    def progressed(self) -> None:
        """Begin to count anew: something came."""
        self.n_faults = 0

    def wait_s(self, fault: TransientError) -> float:
        """Return how long to wait after `fault`. Raises `fault` when it was the last attempt."""
        self.n_faults += 1
        if self.n_faults >= self._policy.n_attempts or fault.wait_s > self._policy.max_retry_after_s:
            raise fault
        grown = min(self._policy.first_wait_s * 2.0 ** (self.n_faults - 1), self._policy.max_wait_s)
        return max(fault.wait_s, grown * random.uniform(0.5, 1.0))  # so that connections do not come back at once
