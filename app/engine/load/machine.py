"""This machine for the planner: the devices that the engine can use, joined with what the system reports of them.

Owns the join, and the process that lists GPUs, `python -m app.engine.load.machine` with {"rpc": [servers]} on stdin: a
driver that crashes ends only that process. Independent of models.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from app.engine.load.machine_file import MachineFile, this_build
from app.engine.model_task import TaskProgress, run_task, serve_task
from app.protocol.codec import decode_checked, encode
from offload.devices.bandwidth import measure_read_bandwidth, settled_bandwidth
from offload.devices.gpus import (
    ListedGpu,
    PciGpu,
    distinct_gpus,
    driver_versions,
    known_bandwidth,
    nvidia_gpus,
    pci_gpus,
)
from offload.devices.host import HostMemory, default_threads, host_memory, is_quiet
from offload.devices.machine import HOST_NAME, Device, DeviceKind, DeviceSpeed, Machine
from quantizer.system.errors import EngineError, WrongProcessorError

_LOOPBACK = ("localhost:", "127.")
_CONNECT_TIMEOUT_S = 3.0
_BUSY_AGE_S = 600.0  # of what a busy machine measured, before it is measured again
_QUIET_AGE_S = 30 * 86_400.0  # of what a quiet one measured: memory of the same size may be exchanged, or set faster

# Which speed of the memory is wanted: one that is stored if there is one, only of a quiet machine, or of now. Measuring
# takes a second of all processors and of all the memory's bandwidth, also from an answer that runs.
MemorySpeed: TypeAlias = Literal["stored", "quiet", "now"]


@dataclass(frozen=True, slots=True)
class Survey:
    """The machine, its memory by the operating system, and the GPUs that this build of llama.cpp cannot use. Unless
    `is_certain`, the memory was only ever measured beside other programs, and may be faster."""

    machine: Machine
    memory: HostMemory
    unusable: tuple[PciGpu, ...]
    is_certain: bool = True


def survey(rpc: Sequence[str], cache_dir: Path, memory_speed: MemorySpeed = "stored") -> Survey:
    """List the GPUs, and measure the processor's memory unless its speed is stored in `cache_dir`. Memory counts as it
    was when the machine was last quiet. Raises EngineError when that fails."""
    check_reachable(rpc)
    memory, on_bus = host_memory(), pci_gpus()
    bytes_per_s, is_certain = _host_bandwidth(_bandwidth_file(cache_dir), memory.total_bytes, memory_speed)
    try:
        listed = list_gpus(rpc, cache_dir)
    except WrongProcessorError:  # the self-test says so, and each load; what else is here can be listed
        listed = []
    gpus = distinct_gpus(listed)
    _keep_speeds(gpus, cache_dir)
    machine = _machine(memory, bytes_per_s, gpus, on_bus)
    return Survey(machine, memory, unusable_gpus(on_bus, [gpu.address for gpu in gpus]), is_certain)


def _bandwidth_file(cache_dir: Path) -> MachineFile:
    return MachineFile(cache_dir / "bandwidth.json", this_build())


def _host_bandwidth(file: MachineFile, total_bytes: int, wanted: MemorySpeed) -> tuple[float, bool]:
    """Return the bytes a second of the processor's memory of `total_bytes`, and whether the machine was quiet when it
    was measured."""
    now_s, hardware = time.time(), {"n_threads": default_threads(), "total_bytes": total_bytes}
    stored = file.entry(HOST_NAME)
    is_sound = all(type(value) in (int, float, type(None)) for value in stored.values())
    if not is_sound or any(stored.get(name) != value for name, value in hardware.items()):
        stored = dict.fromkeys(stored)  # of other memory, or damaged
    quiet, busy = (
        stored.get(f"{state}_bytes_per_s") if 0 <= now_s - (stored.get(f"{state}_at_s") or 0.0) < age_s else None
        for state, age_s in (("quiet", _QUIET_AGE_S), ("busy", _BUSY_AGE_S))
    )
    if wanted != "now" and quiet is not None:
        return quiet, True
    if wanted == "stored" and busy is not None:
        return busy, False
    measured = measure_read_bandwidth(hardware["n_threads"])
    found = settled_bandwidth(measured, quiet)
    state = "quiet" if is_quiet(measured.others_share) else "busy"
    with contextlib.suppress(OSError):  # the disk is full or read-only: measured again next time
        file.update(HOST_NAME, {**stored, **hardware, f"{state}_bytes_per_s": found[0], f"{state}_at_s": now_s})
    return found


def _speed_file(cache_dir: Path) -> MachineFile:
    return MachineFile(cache_dir / "devices.json", f"{this_build()}, {driver_versions()}")


def known_speeds(cache_dir: Path) -> dict[str, DeviceSpeed]:
    """Return the speeds of GPUs by key, measured with these drivers on a quiet machine or in the last minutes."""
    now_s, known = time.time(), {}
    for key, entry in _speed_file(cache_dir).entries().items():
        with contextlib.suppress(ValueError, TypeError):  # damaged, or of another version: measured again
            speed = decode_checked(DeviceSpeed, entry)
            if is_quiet(speed.others_share) or 0 <= now_s - entry.get("measured_at_s", 0.0) < _BUSY_AGE_S:
                known[key] = speed
    return known


def _keep_speeds(gpus: Sequence[ListedGpu], cache_dir: Path) -> None:
    """Store the speeds that were measured just now."""
    if not (measured := [gpu for gpu in gpus if gpu.speed]):
        return  # most machines: drivers are not asked for their versions
    known = known_speeds(cache_dir)
    for gpu in measured:
        if gpu.speed != known.get(gpu.key):
            with contextlib.suppress(OSError):  # the disk is full or read-only: measured again next time
                _speed_file(cache_dir).update(gpu.key, encode(gpu.speed) | {"measured_at_s": time.time()})


@dataclass(frozen=True, slots=True)
class _GpuRequest:
    rpc: tuple[str, ...]
    known_speeds: Mapping[str, DeviceSpeed]


def list_gpus(rpc: Sequence[str], cache_dir: Path) -> list[ListedGpu]:
    """Return the GPUs of this machine and of `rpc` servers as the child lists them. It measures each whose speed is not
    stored in `cache_dir`, which takes about a second. Raises EngineError."""
    request = _GpuRequest(tuple(rpc), known_speeds(cache_dir))
    return run_task("app.engine.load.machine", request, TaskProgress, ListedGpu)


def detect_machine(gpus: Sequence[ListedGpu], cache_dir: Path) -> Machine:
    """Return this machine with the `gpus` that ggml listed. The memory bandwidth of the processor is stored in
    `cache_dir` once the machine was quiet, and so are the speeds of `gpus`. Without a GPU it is not measured: it would
    decide nothing."""
    _keep_speeds(gpus, cache_dir)
    file = _bandwidth_file(cache_dir)
    memory = host_memory()
    known = file.entry(HOST_NAME).get("quiet_bytes_per_s")
    bytes_per_s = _host_bandwidth(file, memory.total_bytes, "stored")[0] if gpus else known
    return _machine(memory, bytes_per_s, distinct_gpus(gpus), pci_gpus() if gpus else ())


def _machine(
    memory: HostMemory, bytes_per_s: float | None, gpus: Sequence[ListedGpu], on_bus: Sequence[PciGpu]
) -> Machine:
    nvidia = nvidia_gpus() if gpus else ()
    links = {gpu.address: gpu.link_bytes_per_s for gpu in on_bus}
    links |= {gpu.address: gpu.link_bytes_per_s for gpu in nvidia}
    speeds = {gpu.address: gpu.bytes_per_s for gpu in nvidia}
    host = Device(
        name=HOST_NAME,
        kind=DeviceKind.CPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        bytes_per_s=bytes_per_s,
        n_cores=default_threads(),
    )
    return Machine(host, tuple(with_host_bandwidth(gpu_device(gpu, links, speeds), host) for gpu in gpus))


def unusable_gpus(on_bus: Sequence[PciGpu], usable_addresses: Sequence[str]) -> tuple[PciGpu, ...]:
    """Return the GPUs on the bus that ggml did not list; none if it lists one without an address."""
    if not all(usable_addresses):
        return ()
    return tuple(gpu for gpu in on_bus if gpu.address not in usable_addresses)


def with_host_bandwidth(gpu: Device, host: Device) -> Device:
    """Return `gpu` with the processor's bandwidth if it shares its memory and its own bandwidth is unknown."""
    return replace(gpu, bytes_per_s=host.bytes_per_s) if gpu.shares_host and gpu.bytes_per_s is None else gpu


def gpu_device(
    gpu: ListedGpu, links: Mapping[str, float | None], speeds: Mapping[str, float | None] | None = None
) -> Device:
    """Return the device of a GPU that ggml listed. `links` and `speeds` are the bandwidths of its link and of its
    memory by address. The table of known GPUs precedes `speeds`, and both precede what was measured."""
    measured = gpu.speed.bytes_per_s if gpu.speed else None
    return Device(
        name=gpu.name,
        kind=DeviceKind.INTEGRATED if gpu.has_unified_memory else DeviceKind.GPU,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        bytes_per_s=known_bandwidth(gpu.description) or (speeds or {}).get(gpu.address) or measured,
        link_bytes_per_s=gpu.link_bytes_per_s or links.get(gpu.address),
        link_latency_s=gpu.link_latency_s,
        description=gpu.description,
        speed=gpu.speed,
    )


def check_reachable(endpoints: Sequence[str]) -> None:
    """Raise EngineError for the first of `endpoints` that cannot be reached."""
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            cause = f"The RPC server {endpoint} cannot be reached: {error}."
            raise EngineError(cause, "Start llama.cpp's rpc-server there, or leave out --rpc.") from error


def exposure_warning(endpoints: Sequence[str]) -> str:
    """Return the warning about servers on other machines, "" without any."""
    others = [endpoint for endpoint in endpoints if not endpoint.startswith(_LOOPBACK)]
    if not others:
        return ""
    return (
        f"RPC is unauthenticated and unencrypted: anyone on the network path to {', '.join(others)} can read and "
        "change everything that is computed there. Use it in trusted networks only."
    )


def _listed_gpus(request: _GpuRequest) -> Iterator[ListedGpu]:
    from app.engine.llama.devices import add_rpc_servers, ggml_gpus

    add_rpc_servers(request.rpc)
    yield from ggml_gpus(with_links=True, known_speeds=request.known_speeds)


if __name__ == "__main__":
    sys.exit(serve_task(_GpuRequest, _listed_gpus))
