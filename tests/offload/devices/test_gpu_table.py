from __future__ import annotations

import pytest

from offload.devices.gpu_table import known_bandwidth


@pytest.mark.parametrize(
    ("description", "gb_per_s"),
    [
        ("NVIDIA GeForce RTX 3060", 360),
        ("NVIDIA GeForce RTX 3060 Ti", 448),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 672),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 960),
        ("Apple M2", 100),
        ("Apple M2 Max", 400),
        ("NVIDIA H100 80GB HBM3", 3350),
    ],
)
def test_a_gpu_is_known_by_the_longest_name_in_its_description(description: str, gb_per_s: float) -> None:
    assert known_bandwidth(description) == gb_per_s * 1e9


@pytest.mark.parametrize(
    "description", ["NVIDIA GeForce RTX 4090 Laptop GPU", "Quadro K2000", "NVIDIA GeForce RTX 30600", ""]
)
def test_another_gpu_stays_unknown(description: str) -> None:
    assert known_bandwidth(description) is None
