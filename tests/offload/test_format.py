from __future__ import annotations

import pytest

from offload.format import format_bandwidth, format_speed_range


@pytest.mark.parametrize(
    ("tps", "uncertainty", "wanted"),
    [
        (32.0, 0.05, "32"),
        (32.0, 0.19, "32"),
        (32.0, 0.35, "21–43"),
        (5.0, 0.5, "2.5–7.5"),
        (1.3, 0.9, "0.13–2.0"),
        (40.0, 3.0, "2.0–60"),
        (0.001, 0.3, "0.00"),
    ],
)
def test_a_speed_that_is_uncertain_is_a_range(tps: float, uncertainty: float, wanted: str) -> None:
    assert format_speed_range(tps, uncertainty) == wanted


def test_a_bandwidth_has_tenths_where_they_say_something() -> None:
    assert [format_bandwidth(rate) for rate in (1.84e9, 9.99e9, 10e9, 1008e9)] == ["1.8", "10.0", "10", "1,008"]
