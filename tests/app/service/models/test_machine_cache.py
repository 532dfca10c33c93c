from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from app.service.models.plan_service import MachineCache, machine_for_reload
from app.service.pool.memory import LoadedModel
from offload.devices.machine import Device, DeviceKind, Machine

GIB = 1 << 30
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=32 * GIB, free_bytes=1)
GPU = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=12 * GIB, free_bytes=4 * GIB)
MODEL = Path("/models/a.gguf")


class Looks:
    """Counts how often the machine was looked at."""

    def __init__(self, machine: Machine) -> None:
        self.n_looks = 0
        self._machine = machine

    def __call__(self) -> Machine:
        self.n_looks += 1
        return self._machine


def loaded(pid: int, path: Path = MODEL) -> LoadedModel:
    return LoadedModel(path=path, worker_pid=pid, held_bytes={"CUDA0": 7 * GIB})


def test_a_machine_is_surveyed_once_and_its_free_memory_every_time() -> None:
    looks, free = Looks(Machine(HOST)), iter((5 * GIB, 6 * GIB))
    look = MachineCache(looks, lambda: next(free))
    assert [look.machine(()).host.free_bytes for _ in range(2)] == [5 * GIB, 6 * GIB]
    assert looks.n_looks == 1


def test_gpus_are_surveyed_again_when_other_processes_hold_them() -> None:
    looks = Looks(Machine(HOST, (GPU,)))
    look = MachineCache(looks, lambda: GIB)
    for models in ((), (loaded(1),), (loaded(1),), (loaded(2),)):
        look.machine(models)
    assert looks.n_looks == 3


def test_without_gpus_a_new_worker_is_no_reason_for_a_survey() -> None:
    looks = Looks(Machine(HOST))
    look = MachineCache(looks, lambda: GIB)
    look.machine(())
    look.machine((loaded(1),))
    assert looks.n_looks == 1
    look.machine((), is_fresh=True)
    assert looks.n_looks == 2


def test_a_models_memory_is_free_for_reloading_it_and_for_no_other() -> None:
    machine = Machine(replace(HOST, free_bytes=GIB), (GPU,))
    with_room = machine_for_reload(machine, MODEL, [loaded(os.getpid())])
    assert with_room.gpus[0].free_bytes == 11 * GIB
    assert with_room.host.free_bytes > GIB
    assert machine_for_reload(machine, Path("/models/b.gguf"), [loaded(os.getpid())]) == machine


def test_no_device_becomes_freer_than_it_is_large() -> None:
    machine = Machine(HOST, (replace(GPU, free_bytes=10 * GIB),))
    assert machine_for_reload(machine, MODEL, [loaded(2**22 + 1)]).gpus[0].free_bytes == 12 * GIB
