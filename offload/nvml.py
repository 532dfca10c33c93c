"""What NVIDIA's driver tells of its GPUs: how fast they read their memory and how wide their links are.

Owns the questions. The library that asks (nvidia-ml-py) and the driver may both be missing, and old drivers and virtual
GPUs leave some of them open: then that is unknown.
Source: the reference of NVML (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["NvidiaGpu", "nvidia_gpus"]

_TRANSFERS_PER_CLOCK = 2  # memory clocks are told of one edge
_GENERATION_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # of one PCIe lane
_ADDRESS_LENGTH = len("0000:01:00.0")  # NVML writes eight digits of the domain


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """A GPU by its PCI address, such as 0000:01:00.0; what the driver does not tell is None."""

    address: str
    bytes_per_s: float | None
    link_bytes_per_s: float | None


def nvidia_gpus(library: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> tuple[NvidiaGpu, ...]:
    """Return what the driver tells of each GPU; nothing without it, or without the library that asks it."""
    try:
        nvml = library()
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(_gpus(nvml))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _gpus(nvml: Any) -> Iterator[NvidiaGpu]:
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = nvml.nvmlDeviceGetPciInfo(gpu).busId
        address = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)
        yield NvidiaGpu(address[-_ADDRESS_LENGTH:].lower(), _bytes_per_s(nvml, gpu), _link_bytes_per_s(nvml, gpu))


def _bytes_per_s(nvml: Any, gpu: Any) -> float | None:
    megahertz = _asked(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM))
    bits = _asked(nvml, lambda: nvml.nvmlDeviceGetMemoryBusWidth(gpu))
    return megahertz * 1e6 * _TRANSFERS_PER_CLOCK * bits / 8 if megahertz and bits else None


def _link_bytes_per_s(nvml: Any, gpu: Any) -> float | None:
    """The link at its best: an idle GPU lets it fall back to the slowest."""
    generation = _asked(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))
    n_lanes = _asked(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))
    lane = _GENERATION_BYTES_PER_S.get(generation or 0)
    return lane * n_lanes if lane and n_lanes else None


def _asked(nvml: Any, question: Callable[[], int]) -> int | None:
    try:
        return question()
    except nvml.NVMLError:
        return None
