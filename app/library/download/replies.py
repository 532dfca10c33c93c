"""What a reply to a request for a range of bytes is worth. Pure.

Owns which statuses and headers are believed. A fault is one that may pass: whoever asked tries again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.library.download.ranges import Range

__all__ = ["Body", "Expected", "FaultError", "body_of", "retry_after_s", "strong_etag"]

_PART = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SLOW_DOWN = {408, 425, 429, 500, 502, 503, 504}
_MAX_DIGITS = 6


class FaultError(Exception):
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
    """What is known before the reply: the range asked for, the length of the file, and its etag there or empty."""

    part: Range
    n_bytes: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """Where in the file the body of a reply begins, and the etag that it came with or empty."""

    begin: int
    etag: str


def body_of(status: int, headers: Mapping[str, str], expected: Expected) -> Body:
    """Return what the body of a reply is. `headers` finds names in any case. Raises FaultError for one of no use."""
    if status in _SLOW_DOWN:
        raise FaultError(f"it answers {status}", wait_s=retry_after_s(headers))
    if status not in (200, 206):
        raise FaultError(f"it answers {status}", is_stale=True)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise FaultError("it sends the file encoded, which was not asked for")
    etag = strong_etag(headers)
    if expected.etag and etag != expected.etag:
        raise FaultError("the file there has changed", is_stale=True)
    return Body(_begin_of_part(headers, expected) if status == 206 else _begin_of_whole(headers, expected), etag)


def strong_etag(headers: Mapping[str, str]) -> str:
    """Return the mark of these very bytes, empty without one: a weak one would do for others too."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') and len(etag) < 256 else ""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how long a server asks to be left alone, 0 where it does not say so in seconds."""
    said = headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdecimal() and len(said) <= _MAX_DIGITS else 0.0


def _begin_of_part(headers: Mapping[str, str], expected: Expected) -> int:
    match = _PART.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        raise FaultError("it does not say which part it sends")
    begin, last, n_bytes = (int(number) for number in match.groups())
    if n_bytes != expected.n_bytes:
        raise FaultError(f"the file there has {n_bytes:,} bytes, not {expected.n_bytes:,}", is_stale=True)
    if begin != expected.part.begin or not begin <= last < expected.part.end:
        raise FaultError("it sends another part than was asked for")
    return begin


def _begin_of_whole(headers: Mapping[str, str], expected: Expected) -> int:
    """The whole file is as good as a part at its beginning, and better than nothing elsewhere."""
    said = headers.get("Content-Length", "")
    if said and said != str(expected.n_bytes):
        raise FaultError(f"the file there has {said[:20]} bytes, not {expected.n_bytes:,}", is_stale=True)
    if expected.part.begin > 0:
        raise FaultError("it sends the whole file where a part was asked for", has_no_ranges=True)
    return 0
