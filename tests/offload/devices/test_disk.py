from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offload.devices.bandwidth import measure_disk_read


def test_what_is_small_missing_or_a_folder_is_unknown(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(bytes(4096))
    assert [measure_disk_read(path) for path in (small, tmp_path / "none", tmp_path)] == [None] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is unknown")
def test_a_file_is_read_past_the_cache_or_its_speed_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(9 << 20))
    speed = measure_disk_read(file)
    assert speed is None or speed > 1e5
