from __future__ import annotations

import pytest

from app.common.terminal import format_bytes, format_count


@pytest.mark.parametrize(
    ("n", "size", "count"),
    [
        (0, "0 B", "0"),
        (999, "999 B", "999"),
        (999_600, "1 MB", "1M"),
        (3_610_000, "3.61 MB", "3.61M"),
        (1_235_814_400, "1.24 GB", "1.24B"),
        (5 * 10**15, "5,000 TB", "5,000T"),
    ],
)
def test_three_digits_are_shown(n: int, size: str, count: str) -> None:
    assert (format_bytes(n), format_count(n)) == (size, count)
