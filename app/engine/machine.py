"""This machine, as far as running models goes: what the engine can use, joined with what the system knows of it.

Owns the join. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.engine.child import lines_of
from app.processes import python_module
from offload.bandwidth import measure_read_bandwidth
from offload.cpu import default_threads
from offload.gpu_table import known_bandwidth
from offload.host_memory import host_memory
from offload.machine import Device, DeviceKind, Machine
from offload.pci import pci_gpus

__all__ = ["gpu_of", "machine_here"]

_HOST = "CPU"


def machine_here() -> Machine:
    """Measure the processor's memory and ask for the GPUs, in about a second. Raises EngineError where that fails."""
    memory = host_memory()
    bandwidth = measure_read_bandwidth(default_threads())
    links = {gpu.address: gpu.link_bytes_per_s for gpu in pci_gpus()}
    found = lines_of(python_module("app.engine.devices_process"), {})
    host = Device(
        name=_HOST,
        kind=DeviceKind.CPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        bytes_per_s=bandwidth.bytes_per_s,
    )
    return Machine(host, tuple(gpu_of(said, links) for said in found))


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
