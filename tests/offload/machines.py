"""Machines as people have them, described as the probes would."""

from __future__ import annotations

from offload.devices.gpus import known_bandwidth
from offload.devices.machine import Device, DeviceKind, Machine

__all__ = ["MACHINES"]

_GIB = 1 << 30
_PCIE_4_X16, _PCIE_3_X16 = 31.5e9, 15.75e9


def _host(total_gib: float, free_gib: float, gb_per_s: float) -> Device:
    return Device(
        name="CPU",
        kind=DeviceKind.CPU,
        total_bytes=int(total_gib * _GIB),
        free_bytes=int(free_gib * _GIB),
        bytes_per_s=gb_per_s * 1e9,
    )


def _gpu(name: str, description: str, gib: float, link: float | None = _PCIE_4_X16) -> Device:
    """A card with a little of its memory in use by the screen."""
    return Device(
        name=name,
        kind=DeviceKind.GPU,
        total_bytes=int(gib * _GIB),
        free_bytes=int((gib - 0.5) * _GIB),
        bytes_per_s=known_bandwidth(description),
        link_bytes_per_s=link,
        description=description,
    )


def _integrated(name: str, description: str, gib: float, gb_per_s: float | None = None) -> Device:
    return Device(
        name=name,
        kind=DeviceKind.INTEGRATED,
        total_bytes=int(gib * _GIB),
        free_bytes=int(gib * _GIB),
        bytes_per_s=gb_per_s * 1e9 if gb_per_s else known_bandwidth(description),
        description=description,
    )


MACHINES = {
    "RTX 3060 12 GB, 32 GB RAM": Machine(
        _host(32, 26, 45), (_gpu("CUDA0", "NVIDIA GeForce RTX 3060", 12, _PCIE_3_X16),)
    ),
    "RTX 4090, 64 GB RAM": Machine(_host(64, 56, 70), (_gpu("CUDA0", "NVIDIA GeForce RTX 4090", 24),)),
    "2 × RTX 3090, 64 GB RAM": Machine(
        _host(64, 56, 45), tuple(_gpu(f"CUDA{i}", "NVIDIA GeForce RTX 3090", 24) for i in range(2))
    ),
    "RX 7900 XTX, 32 GB RAM": Machine(_host(32, 26, 60), (_gpu("ROCm0", "AMD Radeon RX 7900 XTX", 24),)),
    "M2, 16 GB": Machine(_host(16, 11, 80), (_integrated("Metal", "Apple M2", 10.7),)),
    "M3 Max, 64 GB": Machine(_host(64, 52, 300), (_integrated("Metal", "Apple M3 Max", 48),)),
    "laptop with an integrated GPU, 16 GB": Machine(
        _host(16, 10, 50), (_integrated("Vulkan0", "Intel(R) Iris(R) Xe Graphics", 8, 50),)
    ),
    "processor only, 32 GB": Machine(_host(32, 28, 40)),
    "container of 4 GiB": Machine(_host(4, 3.6, 20)),
}
