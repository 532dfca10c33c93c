"""A cached survey of this machine, and the machine without a model that is to be reloaded.

Owns how long a survey is valid. Of models it needs only the memory that their workers hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.service.pool.eviction import LoadedModel
from app.service.pool.memory import private_bytes

if TYPE_CHECKING:
    from offload.devices.machine import Device, Machine

__all__ = ["MachineCache", "machine_for_reload"]

_MAX_AGE_S = 300.0


class MachineCache:
    """Caches `survey`, which takes about a second; `free_bytes`, the free host memory, is called every time.

    Methods may be called in several threads.
    """

    def __init__(self, survey: Callable[[], Machine], free_bytes: Callable[[], int]) -> None:
        self._survey = survey
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._surveyed_pids: frozenset[int | None] = frozenset()
        self._surveyed_s = 0.0

    def machine(self, loaded: Sequence[LoadedModel], *, is_fresh: bool = False) -> Machine:
        """Return the machine, surveyed again if other workers hold its GPUs now. Raises EngineError."""
        with self._lock:
            pids = frozenset(model.worker_pid for model in loaded)
            if self._machine is None or is_fresh or self._is_outdated(self._machine, pids):
                self._machine, self._surveyed_pids, self._surveyed_s = self._survey(), pids, time.monotonic()
            machine = self._machine
        return replace(machine, host=replace(machine.host, free_bytes=self._free_bytes()))

    def _is_outdated(self, machine: Machine, pids: frozenset[int | None]) -> bool:
        is_old = time.monotonic() - self._surveyed_s > _MAX_AGE_S
        return is_old or (bool(machine.gpus) and pids != self._surveyed_pids)


def machine_for_reload(machine: Machine, path: Path, loaded: Sequence[LoadedModel]) -> Machine:
    """Return `machine` without the model at `path`, which a reload unloads first."""
    for model in loaded:
        if model.path == path:
            gpus = tuple(_more(gpu, model.held_bytes.get(gpu.name, 0)) for gpu in machine.gpus)
            machine = replace(machine, host=_more(machine.host, private_bytes(model.worker_pid)), gpus=gpus)
    return machine


def _more(device: Device, n_bytes: int) -> Device:
    return replace(device, free_bytes=min(device.free_bytes + n_bytes, max(device.total_bytes, device.free_bytes)))
