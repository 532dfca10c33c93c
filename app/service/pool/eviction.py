"""Which models are unloaded so that another one fits: decided from what each holds. Pure.

Owns the choice: idle models first, then busy ones, which leave after their last answer; of each the least recently used
first; none without need. Independent of headers, of processes and of how the bytes were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from offload.devices.machine import Device, Machine

__all__ = ["EvictionPlan", "LoadedModel", "ModelDemand", "machine_without", "plan_eviction"]

# How well a model would run on a machine with what is free there: 0 for not at all, never less for more memory.
ModelDemand: TypeAlias = Callable[[Machine], float]
_AS_GOOD = 0.97  # of the rate when alone: the same share below which a plan is called partial


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory: its file, the process that holds it (None before it starts), its bytes by device name, the
    time of its last use in seconds, and whether it is busy."""

    path: Path
    worker_pid: int | None = None
    held_bytes: Mapping[str, int]
    last_used_s: float = 0.0
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The models to unload, least recently used first, and those to wait for first because they are busy.

    `does_not_fit` says that the model would not run even if it were alone; then nothing is unloaded.
    """

    unload: tuple[LoadedModel, ...] = ()
    wait_for: tuple[LoadedModel, ...] = ()
    does_not_fit: bool = False

    @classmethod
    def of(cls, leaving: Iterable[LoadedModel]) -> EvictionPlan:
        leaving = tuple(leaving)
        idle = tuple(model for model in leaving if not model.is_busy)
        return cls(idle, tuple(model for model in leaving if model.is_busy))


def plan_eviction(demand: ModelDemand, loaded: Sequence[LoadedModel], machine: Machine) -> EvictionPlan:
    """Return which of `loaded` make room for `demand`, on a `machine` as free as it is with all of them loaded.

    As many are unloaded as it takes to run as well as alone.
    """
    alone = demand(machine_without(machine, loaded))
    if alone <= 0:
        return EvictionPlan(does_not_fit=True)
    leaving: list[LoadedModel] = []
    candidates = sorted(loaded, key=lambda model: (model.is_busy, model.last_used_s))
    while not _suffices(demand, leaving, machine, alone) and candidates:
        leaving.append(candidates.pop(0))
    for model in reversed(leaving):  # the most recently used is the first to be spared
        others = [other for other in leaving if other is not model]
        if _suffices(demand, others, machine, alone):
            leaving = others
    return EvictionPlan.of(leaving)


def machine_without(machine: Machine, leaving: Iterable[LoadedModel]) -> Machine:
    """Return `machine` with the memory of `leaving` free; memory that a GPU shares with the CPU is free to both."""
    leaving = tuple(leaving)
    freed = {device.name: _held(leaving, device) for device in (machine.host, *machine.gpus)}
    shared = freed[machine.host.name] + sum(freed[gpu.name] for gpu in machine.gpus if gpu.shares_host)

    def freer(device: Device) -> Device:
        return replace(device, free_bytes=device.free_bytes + (shared if device.shares_host else freed[device.name]))

    return Machine(freer(machine.host), tuple(map(freer, machine.gpus)))


def _held(models: Iterable[LoadedModel], device: Device) -> int:
    return sum(model.held_bytes.get(device.name, 0) for model in models)


def _suffices(demand: ModelDemand, leaving: Sequence[LoadedModel], machine: Machine, alone: float) -> bool:
    return demand(machine_without(machine, leaving)) >= _AS_GOOD * alone
