"""The memory that each device really holds of a loaded model, compared with its plan. Pure.

Owns the comparison, and the corrections for the next plan. Independent of how the bytes were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from offload.devices.machine import Device, DeviceKind, Machine
from offload.placement.allocation import Share

_LEAST_SHARE = 0.5  # of the planned weights: with less a device was passed over


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Bytes on one device, by purpose."""

    weight_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """All of them."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True)
class ExcessUsage:
    """Bytes that a load took beyond its plan: the largest excess on a GPU, and that on the processor."""

    gpu_bytes: int = 0
    host_bytes: int = 0


def excess_usage(shares: Sequence[Share], held: Mapping[str, DeviceUsage]) -> ExcessUsage:
    """Return the bytes taken beyond `shares`, by device name.

    The processor's weights are unknown: llama.cpp logs the whole of a mapped file, wherever its layers went.
    """
    on_gpus = [held[share.device.name].n_bytes - share.n_bytes for share in _on_gpus(shares)]
    (host,) = (share for share in shares if share.device.kind is DeviceKind.CPU)
    kept = held[host.device.name]
    on_host = kept.cache_bytes + kept.compute_bytes - host.cache_bytes - host.compute_bytes
    return ExcessUsage(max(0, *on_gpus, 0), max(0, on_host))


def with_reserved(machine: Machine, surplus: ExcessUsage) -> Machine:
    """Return `machine` with less free memory, by the excess of the last load."""
    gpus = tuple(_less(gpu, surplus.gpu_bytes) for gpu in machine.gpus)
    return Machine(_less(machine.host, surplus.host_bytes), gpus)


def missing_gpus(shares: Sequence[Share], held: Mapping[str, DeviceUsage]) -> tuple[str, ...]:
    """Return the GPUs whose planned layers are almost entirely missing."""
    found = ((share.device.name, _LEAST_SHARE * share.weight_bytes) for share in _on_gpus(shares))
    return tuple(name for name, least_bytes in found if held[name].weight_bytes < least_bytes)


def _on_gpus(shares: Sequence[Share]) -> list[Share]:
    return [share for share in shares if share.n_layers and share.device.kind is not DeviceKind.CPU]


def _less(device: Device, n_bytes: int) -> Device:
    return replace(device, free_bytes=max(0, device.free_bytes - n_bytes))
