from __future__ import annotations

import pytest

from offload.devices.gpus import ListedGpu, distinct_gpus, known_bandwidth


def entry(name: str, description: str = "Some GPU", address: str = "", is_integrated: bool = False) -> ListedGpu:
    return ListedGpu(name, description, is_integrated, 0, 0, address)


def names(*entries: ListedGpu) -> list[str]:
    return [found.name for found in distinct_gpus(entries)]


def test_a_card_that_two_backends_list_counts_once() -> None:
    rocm, vulkan = entry("ROCm0", address="0000:03:00.0"), entry("Vulkan0", address="0000:03:00.0")
    other = entry("Vulkan1", address="0000:0A:00.0")
    assert names(rocm, vulkan, other, entry("CUDA0", address="0000:0a:00.0")) == ["ROCm0", "Vulkan1"]


def test_cards_without_an_address_are_different_ones() -> None:
    assert names(entry("Vulkan0"), entry("Vulkan1")) == ["Vulkan0", "Vulkan1"]


def test_an_integrated_gpu_is_used_through_one_backend() -> None:
    rocm, vulkan = entry("ROCm0", is_integrated=True), entry("Vulkan0", is_integrated=True)
    assert names(rocm, entry("ROCm1", is_integrated=True), vulkan, entry("Vulkan1")) == ["ROCm0", "ROCm1", "Vulkan1"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (entry("MTL0", "Apple M2"), True),
        (entry("MTL0", "AMD Radeon Pro 5500M"), False),
        (entry("Vulkan0", is_integrated=True), True),
        (entry("CUDA0", "NVIDIA GeForce RTX 3060"), False),
    ],
)
def test_gpus_of_apple_share_the_memory_although_metal_calls_them_cards(found: ListedGpu, expected: bool) -> None:
    assert found.has_unified_memory is expected


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
