"""Which models go so that another one has room: decided from what each holds. Pure.

Owns the choice. Those used least go first, none that is at work, and none without need. Knows nothing of headers, of
processes or of how the bytes were found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from offload.devices.machine import Device, Machine

__all__ = ["Demand", "EvictionPlan", "Resident", "plan_eviction", "without"]

# How well a model would run on a machine with what is free there: 0 for not at all, never less for more memory.
Demand: TypeAlias = Callable[[Machine], float]
_AS_GOOD = 0.97  # of what it would come to alone: the same share below which a plan is called partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model in memory: bytes by the name of the device that holds them, and when it was last used, in seconds."""

    name: str
    held_bytes: Mapping[str, int]
    last_used_s: float
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The models to unload, used least first, and those that are to be waited for before: they are at work.

    `is_hopeless` tells that the model would not run if it were alone; then nobody has to go for it.
    """

    unload: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()
    is_hopeless: bool = False


def plan_eviction(wanted: Demand, loaded: Sequence[Resident], machine: Machine) -> EvictionPlan:
    """Return who of `loaded` goes for what is `wanted`, on a `machine` as free as it is with all of them loaded.

    So many go that it runs as well as it would alone.
    """
    alone = wanted(without(machine, loaded))
    if alone <= 0:
        return EvictionPlan(is_hopeless=True)
    leaving: list[Resident] = []
    waiting = sorted(loaded, key=lambda resident: (resident.is_busy, resident.last_used_s))
    while not _suffices(wanted, leaving, machine, alone) and waiting:
        leaving.append(waiting.pop(0))
    for resident in reversed(leaving):  # what was used last is the first to be spared
        others = [other for other in leaving if other is not resident]
        if _suffices(wanted, others, machine, alone):
            leaving = others
    return EvictionPlan(
        unload=tuple(resident.name for resident in leaving if not resident.is_busy),
        wait_for=tuple(resident.name for resident in leaving if resident.is_busy),
    )


def without(machine: Machine, leaving: Iterable[Resident]) -> Machine:
    """Return `machine` with what `leaving` hold free. Memory that a GPU shares with the processor is free to both."""
    leaving = tuple(leaving)
    freed = {device.name: _held(leaving, device) for device in (machine.host, *machine.gpus)}
    shared = freed[machine.host.name] + sum(freed[gpu.name] for gpu in machine.gpus if gpu.shares_host)

    def freer(device: Device) -> Device:
        return replace(device, free_bytes=device.free_bytes + (shared if device.shares_host else freed[device.name]))

    return Machine(freer(machine.host), tuple(map(freer, machine.gpus)))


def _held(residents: Iterable[Resident], device: Device) -> int:
    return sum(resident.held_bytes.get(device.name, 0) for resident in residents)


def _suffices(wanted: Demand, leaving: Sequence[Resident], machine: Machine, alone: float) -> bool:
    return wanted(without(machine, leaving)) >= _AS_GOOD * alone
