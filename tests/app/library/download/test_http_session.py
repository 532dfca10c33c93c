from __future__ import annotations

import time
from email.utils import formatdate

import httpx
import pytest

from app.library.download.downloader import RateLimit
from app.library.download.events import Speedometer
from app.library.download.http_session import (
    Expected,
    Retries,
    RetryPolicy,
    TransientError,
    body_of,
    content_mark,
    retry_after_s,
)
from app.library.download.remote_file import Range

PART = {"Content-Range": "bytes 10-19/100", "ETag": '"a"'}
ASKED = Expected(Range(10, 20), 100, '"a"')


def test_a_part_begins_at_its_offset() -> None:
    assert body_of(206, httpx.Headers(PART), ASKED) == (10, '"a"')


def test_the_whole_is_as_good_as_a_part_at_its_beginning() -> None:
    assert body_of(200, httpx.Headers({"Content-Length": "100"}), Expected(Range(0, 20), 100)) == (0, "")


@pytest.mark.parametrize(
    ("status", "headers", "is_stale"),
    [
        (206, {"ETag": '"a"'}, False),
        (206, PART | {"Content-Range": "bytes 11-19/100"}, False),
        (206, PART | {"Content-Range": "bytes 10-20/100"}, False),
        (206, PART | {"Content-Range": "bytes 10-9/100"}, False),
        (206, PART | {"Content-Range": "bytes 10-19/101"}, True),
        (206, PART | {"ETag": '"b"'}, True),
        (206, PART | {"ETag": 'W/"a"'}, True),
        (206, PART | {"Content-Encoding": "gzip"}, False),
        (200, {"Content-Length": "100", "ETag": '"a"'}, False),
        (200, {"Content-Length": "99", "ETag": '"a"'}, True),
        (403, {}, True),
        (416, {}, True),
        (503, {}, False),
        (204, {}, True),
    ],
)
def test_any_other_reply_is_a_fault(status: int, headers: dict[str, str], is_stale: bool) -> None:
    with pytest.raises(TransientError) as caught:
        body_of(status, httpx.Headers(headers), ASKED)
    assert caught.value.is_stale is is_stale


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [("7", 7.0), ("0", 0.0), ("-1", 0.0), ("1e9", 0.0), ("²", 0.0), ("9999999", 0.0), ("Wed, 21 Oct 2026", 0.0)],
)
def test_a_server_may_ask_for_seconds(said: str, wait_s: float) -> None:
    assert retry_after_s({"Retry-After": said}) == wait_s


@pytest.mark.parametrize(
    ("said", "date", "wait_s"),
    [
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
        ("Wednesday, 21-Oct-26 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
        ("Wed Oct 21 07:28:30 2026", "Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:29:00 GMT", 0.0),
        ("Wed, 21 Oct 1026 07:28:30 GMT", "", 0.0),
        ("Wed, 99 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
    ],
)
def test_a_server_may_name_the_time_by_its_own_clock(said: str, date: str, wait_s: float) -> None:
    assert retry_after_s({"Retry-After": said, **({"Date": date} if date else {})}) == wait_s


def test_a_time_is_reckoned_by_our_clock_where_the_server_does_not_tell_its_own() -> None:
    assert 0 < retry_after_s({"Retry-After": formatdate(time.time() + 60, usegmt=True)}) <= 60


@pytest.mark.parametrize(
    ("headers", "mark"),
    [
        ({"ETag": '"a"', "Last-Modified": "Wed, 21 Oct 2026 07:00:00 GMT"}, '"a"'),
        ({"ETag": 'W/"a"', "Last-Modified": "Wed, 21 Oct 2026 07:00:00 GMT"}, ""),
        ({"Last-Modified": "Wed, 21 Oct 2026 07:00:00 GMT"}, "Wed, 21 Oct 2026 07:00:00 GMT"),
        ({"Last-Modified": "Wed, 21 Oct 2026 07:59:30 GMT"}, ""),  # it may change again in the same second
        ({"Last-Modified": "yesterday"}, ""),
        ({}, ""),
    ],
)
def test_only_exact_validators_are_marks(headers: dict[str, str], mark: str) -> None:
    assert content_mark({"Date": "Wed, 21 Oct 2026 08:00:00 GMT", **headers}) == mark


def test_waits_grow_and_end() -> None:
    retries = Retries(RetryPolicy(n_attempts=5, first_wait_s=1.0, max_wait_s=4.0))
    fault = TransientError("it stalls")
    waits = [retries.wait_s(fault) for _ in range(4)]
    assert all(0.5 * limit <= wait <= limit for wait, limit in zip(waits, (1.0, 2.0, 4.0, 4.0), strict=True))
    with pytest.raises(TransientError):
        retries.wait_s(fault)
    retries.progressed()
    assert retries.wait_s(fault) <= 1.0


def test_a_server_gets_the_time_that_it_asks_for_within_reason() -> None:
    retries = Retries(RetryPolicy(max_retry_after_s=60.0))
    assert retries.wait_s(TransientError("429", wait_s=59.0)) == 59.0
    with pytest.raises(TransientError):
        retries.wait_s(TransientError("429", wait_s=3600.0))


def test_a_limit_holds_for_all_who_take() -> None:
    limit = RateLimit(1000, now=lambda: 0.0)
    assert [limit.wait_s(500), limit.wait_s(500), limit.wait_s(1000)] == [0.5, 1.0, 2.0]
    assert RateLimit(0).wait_s(10**9) == 0.0


def test_speed_is_that_of_the_last_seconds() -> None:
    clock = iter(range(100))
    speed = Speedometer(now=lambda: float(next(clock)))
    assert [speed.bytes_per_s(n) for n in (0, 100, 200)] == [0.0, 100.0, 100.0]
    assert [speed.bytes_per_s(200) for _ in range(12)][-1] == 0.0
