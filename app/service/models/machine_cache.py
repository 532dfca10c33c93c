"""This machine as the planner of the service sees it: looked at once in a while, with room for what would be reloaded.

Owns what is kept and for how long. Knows nothing of models beyond what their workers hold.
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

_KEPT_S = 300.0


class MachineCache:
    """`survey` looks at everything, in about a second; what is free of the processor's memory is asked every time.

    Calls may come from several threads.
    """

    def __init__(self, survey: Callable[[], Machine], free_bytes: Callable[[], int]) -> None:
        self._survey = survey
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._seen: Machine | None = None
        self._seen_with: frozenset[int | None] = frozenset()
        self._seen_at_s = 0.0

    def machine(self, loaded: Sequence[LoadedModel], *, is_fresh: bool = False) -> Machine:
        """Return the machine as it is, looking anew where GPUs are held by other processes than at the last look.

        Raises EngineError where looking fails.
        """
        with self._lock:
            pids = frozenset(model.worker_pid for model in loaded)
            if self._seen is None or is_fresh or self._is_outdated(self._seen, pids):
                self._seen, self._seen_with, self._seen_at_s = self._survey(), pids, time.monotonic()
            seen = self._seen
        return replace(seen, host=replace(seen.host, free_bytes=self._free_bytes()))

    def _is_outdated(self, seen: Machine, pids: frozenset[int | None]) -> bool:
        is_old = time.monotonic() - self._seen_at_s > _KEPT_S
        return is_old or (bool(seen.gpus) and pids != self._seen_with)


def machine_for_reload(machine: Machine, path: Path, loaded: Sequence[LoadedModel]) -> Machine:
    """Return `machine` as it would be without the model at `path`, which loading it again makes leave first."""
    for model in loaded:
        if model.path == path:
            gpus = tuple(_more(gpu, model.held_bytes.get(gpu.name, 0)) for gpu in machine.gpus)
            machine = replace(machine, host=_more(machine.host, private_bytes(model.worker_pid)), gpus=gpus)
    return machine


def _more(device: Device, n_bytes: int) -> Device:
    return replace(device, free_bytes=min(device.free_bytes + n_bytes, max(device.total_bytes, device.free_bytes)))
