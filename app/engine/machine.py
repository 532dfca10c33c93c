"""This machine, as far as running models goes: what the engine can use, joined with what the system knows of it.

Owns the join. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.engine.child import lines_of
from app.engine.machine_file import MachineFile
from app.engine.rpc import check_reachable
from app.processes import python_module
from offload.bandwidth import measure_read_bandwidth
from offload.cpu import default_threads
from offload.duplicates import distinct, has_unified_memory
from offload.gpu_table import known_bandwidth
from offload.host_memory import HostMemory, host_memory
from offload.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.nvml import nvidia_gpus
from offload.pci import PciGpu, pci_gpus

__all__ = ["Survey", "gpu_of", "machine_here", "sharing", "survey", "unusable_gpus"]


@dataclass(frozen=True, slots=True)
class Survey:
    """The machine, the memory as its system tells it, and GPUs that are there but not for this build of llama.cpp."""

    machine: Machine
    memory: HostMemory
    unusable: tuple[PciGpu, ...]


def survey(rpc: Sequence[str] = ()) -> Survey:
    """Measure the processor's memory and ask for the GPUs, those of `rpc` servers too, in about a second.

    Raises EngineError where that fails.
    """
    check_reachable(rpc)
    memory, on_bus = host_memory(), pci_gpus()
    bandwidth = measure_read_bandwidth(default_threads())
    found = distinct(list(lines_of(python_module("app.engine.devices_process"), {"rpc": list(rpc)})))
    machine = _machine(memory, bandwidth.bytes_per_s, found, on_bus)
    return Survey(machine, memory, unusable_gpus(on_bus, [said["address"] for said in found]))


def machine_here(gpus: Sequence[Mapping[str, Any]], kept: MachineFile) -> Machine:
    """Return this machine with the `gpus` that ggml listed in this very process.

    How fast the processor reads its memory is measured once and `kept`, and not at all without a GPU: then it decides
    nothing.
    """
    bytes_per_s = kept.entry(HOST_NAME).get("bytes_per_s")
    if gpus and bytes_per_s is None:
        bytes_per_s = measure_read_bandwidth(default_threads()).bytes_per_s
        kept.update(HOST_NAME, {"bytes_per_s": bytes_per_s})
    return _machine(host_memory(), bytes_per_s, distinct(gpus), pci_gpus() if gpus else ())


def _machine(
    memory: HostMemory, bytes_per_s: float | None, gpus: Sequence[Mapping[str, Any]], on_bus: Sequence[PciGpu]
) -> Machine:
    told = nvidia_gpus() if gpus else ()
    links = {gpu.address: gpu.link_bytes_per_s for gpu in on_bus} | {gpu.address: gpu.link_bytes_per_s for gpu in told}
    paces = {gpu.address: gpu.bytes_per_s for gpu in told}
    host = Device(
        name=HOST_NAME,
        kind=DeviceKind.CPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        bytes_per_s=bytes_per_s,
    )
    return Machine(host, tuple(sharing(gpu_of(said, links, paces), host) for said in gpus))


def unusable_gpus(on_bus: Sequence[PciGpu], usable_addresses: Sequence[str]) -> tuple[PciGpu, ...]:
    """Return the GPUs on the bus that ggml did not list; none where it lists one without an address."""
    if not all(usable_addresses):
        return ()
    return tuple(gpu for gpu in on_bus if gpu.address not in usable_addresses)


def sharing(gpu: Device, host: Device) -> Device:
    """Return `gpu` with the processor's bandwidth where it shares its memory and nobody knows more of it."""
    return replace(gpu, bytes_per_s=host.bytes_per_s) if gpu.shares_host and gpu.bytes_per_s is None else gpu


def gpu_of(
    said: Mapping[str, Any], links: Mapping[str, float | None], paces: Mapping[str, float | None] | None = None
) -> Device:
    """Return what `devices_process` said of one GPU as a device.

    By its address, where they have it, `links` tell what crosses to it, and `paces` how fast it reads its memory unless
    its name tells.
    """
    link = said["link"]
    return Device(
        name=said["name"],
        kind=DeviceKind.INTEGRATED if has_unified_memory(said) else DeviceKind.GPU,
        total_bytes=said["total_bytes"],
        free_bytes=said["free_bytes"],
        bytes_per_s=known_bandwidth(said["description"]) or (paces or {}).get(said["address"]),
        link_bytes_per_s=link["bytes_per_s"] if link else links.get(said["address"]),
        link_latency_s=link["latency_s"] if link else None,
        description=said["description"],
    )
