"""This machine, as far as running models goes: what the engine can use, joined with what the system knows of it.

Owns the join. Knows nothing of models.

The process that lists GPUs: `python -m app.engine.load.machine`, {"rpc": [servers to ask too]} on stdin.

A driver that dies takes only this with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.engine.load.machine_file import MachineFile
from app.engine.load.rpc import check_reachable
from app.engine.model_task import Line, run_child, serve
from offload.devices.bandwidth import measure_read_bandwidth
from offload.devices.cpu import default_threads
from offload.devices.gpu_table import known_bandwidth
from offload.devices.gpus import PciGpu, distinct, has_unified_memory, nvidia_gpus, pci_gpus
from offload.devices.host_memory import HostMemory, host_memory
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from quantizer.process import python_command

__all__ = ["Survey", "detect_machine", "gpu_from_json", "survey", "unusable_gpus", "with_host_bandwidth"]


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
    found = distinct(list(run_child(python_command("app.engine.load.machine"), {"rpc": list(rpc)})))
    machine = _machine(memory, bandwidth.bytes_per_s, found, on_bus)
    return Survey(machine, memory, unusable_gpus(on_bus, [said["address"] for said in found]))


def detect_machine(gpus: Sequence[Mapping[str, Any]], kept: MachineFile) -> Machine:
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
    return Machine(host, tuple(with_host_bandwidth(gpu_from_json(said, links, paces), host) for said in gpus))


def unusable_gpus(on_bus: Sequence[PciGpu], usable_addresses: Sequence[str]) -> tuple[PciGpu, ...]:
    """Return the GPUs on the bus that ggml did not list; none where it lists one without an address."""
    if not all(usable_addresses):
        return ()
    return tuple(gpu for gpu in on_bus if gpu.address not in usable_addresses)


def with_host_bandwidth(gpu: Device, host: Device) -> Device:
    """Return `gpu` with the processor's bandwidth where it shares its memory and nobody knows more of it."""
    return replace(gpu, bytes_per_s=host.bytes_per_s) if gpu.shares_host and gpu.bytes_per_s is None else gpu


def gpu_from_json(
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


def _work(request: Line) -> Iterator[Line]:
    from app.engine.llama.devices import ggml_gpus
    from app.engine.llama.rpc import add_rpc_servers

    add_rpc_servers(request["rpc"])
    for device in ggml_gpus(with_links=True):
        yield asdict(device)


if __name__ == "__main__":
    sys.exit(serve(_work))
