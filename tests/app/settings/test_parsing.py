from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import RequestError
from app.settings.parsing import parse_duration, parse_rpc_endpoints
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (0, 0.0),
        (300, 300.0),
        (0.5, 0.5),
        ("0", 0.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("3600", 3600.0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
    ],
)
def test_durations_as_ollamas_clients_write_them(duration: str | float, seconds: float | None) -> None:
    assert parse_duration(duration) == seconds


@pytest.mark.parametrize("duration", ["", "soon", "5x", "m", "5m soon", "--1", "1e9", "9" * 40, 1e300, "9999999h"])
def test_what_is_no_duration_is_refused(duration: str | float) -> None:
    with pytest.raises(RequestError, match="not a duration"):
        parse_duration(duration)


@given(st.text(alphabet="0123456789.-hmsnu µ", max_size=30))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except RequestError:
        return
    assert seconds is None or 0 <= seconds <= 1e9


def test_servers_are_separated_by_commas_and_each_counts_once() -> None:
    assert parse_rpc_endpoints("") == ()
    assert parse_rpc_endpoints("a.local:1, 10.0.0.2:50052,a.local:1") == ("a.local:1", "10.0.0.2:50052")


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "http://host:1", "[::1]:1", "-o:1"])
def test_invalid_servers_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="not an RPC server"):
        parse_rpc_endpoints(text)
