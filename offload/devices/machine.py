"""A machine for running models: processor and GPUs, their memory and how fast it is read.

Owns the description. Independent of how it was measured; unknown figures are None.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOST_NAME = "CPU"  # as llama.cpp calls it


class DeviceKind(StrEnum):
    """The kind of a device. An integrated GPU has no memory of its own: it uses the processor's."""

    CPU = "cpu"
    GPU = "gpu"
    INTEGRATED = "integrated"


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a device was measured to do: bytes of weights that it reads a second for one token, and operations
    (multiplications and additions) a second for many. `others_share` is the share of the processors that others took
    meanwhile, None where it is unknown."""

    bytes_per_s: float
    operations_per_s: float
    others_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One processor with memory. `bytes_per_s` is what it reads there, `link_bytes_per_s` what crosses to it; `speed`
    is what matrix products reached, of a GPU on which they were measured. `link_latency_s`, the time of asking and
    getting an answer, is known of devices of other machines only. `n_cores` are those of a processor that compute, 0
    where they are unknown."""

    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    link_latency_s: float | None = None
    description: str = ""
    speed: DeviceSpeed | None = None
    n_cores: int = 0

    @property
    def is_remote(self) -> bool:
        return self.link_latency_s is not None

    @property
    def shares_host(self) -> bool:
        return self.kind is not DeviceKind.GPU


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor with its memory, and the GPUs that the engine can use."""

    host: Device
    gpus: tuple[Device, ...] = ()

    @property
    def free_bytes(self) -> int:
        """All free memory, once."""
        return self.host.free_bytes + sum(gpu.free_bytes for gpu in self.gpus if not gpu.shares_host)
