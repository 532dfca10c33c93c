"""This machine, as far as running models goes: what the engine can use, joined with what the system knows of it.

Owns the join. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.child import lines_of
from app.processes import python_module
from offload.bandwidth import measure_read_bandwidth
from offload.cpu import default_threads
from offload.gpu_table import known_bandwidth
from offload.host_memory import HostMemory, host_memory
from offload.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.pci import PciGpu, pci_gpus

__all__ = ["Survey", "gpu_of", "survey", "unusable_gpus"]


@dataclass(frozen=True, slots=True)
class Survey:
    """The machine, the memory as its system tells it, and GPUs that are there but not for this build of llama.cpp."""

    machine: Machine
    memory: HostMemory
    unusable: tuple[PciGpu, ...]


def survey() -> Survey:
    """Measure the processor's memory and ask for the GPUs, in about a second. Raises EngineError where that fails."""
    memory, on_bus = host_memory(), pci_gpus()
    bandwidth = measure_read_bandwidth(default_threads())
    links = {gpu.address: gpu.link_bytes_per_s for gpu in on_bus}
    found = list(lines_of(python_module("app.engine.devices_process"), {}))
    host = Device(
        name=HOST_NAME,
        kind=DeviceKind.CPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        bytes_per_s=bandwidth.bytes_per_s,
    )
    machine = Machine(host, tuple(gpu_of(said, links) for said in found))
    return Survey(machine, memory, unusable_gpus(on_bus, [said["address"] for said in found]))


def unusable_gpus(on_bus: Sequence[PciGpu], usable_addresses: Sequence[str]) -> tuple[PciGpu, ...]:
    """Return the GPUs on the bus that ggml did not list; none where it lists one without an address."""
    if not all(usable_addresses):
        return ()
    return tuple(gpu for gpu in on_bus if gpu.address not in usable_addresses)


def gpu_of(said: Mapping[str, Any], links: Mapping[str, float | None]) -> Device:
    """Return what `devices_process` said of one GPU as a device, with its link where `links` has its address."""
    return Device(
        name=said["name"],
        kind=DeviceKind.INTEGRATED if said["is_integrated"] else DeviceKind.GPU,
        total_bytes=said["total_bytes"],
        free_bytes=said["free_bytes"],
        bytes_per_s=known_bandwidth(said["description"]),
        link_bytes_per_s=links.get(said["address"]),
        description=said["description"],
    )
