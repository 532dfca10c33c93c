"""A fake of `app.service.pool.memory.MachineMemory`, with the size of each model given by a test.

Independent of this machine, of headers and of plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from app.engine.messages import EngineConfig, UnfitPolicy
from app.protocol.plan import Plan
from app.service.pool.memory import LoadedModel, ModelDemand
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from quantizer.system.errors import EngineError


def host_with(free_bytes: int) -> Machine:
    """Return a machine without GPUs."""
    return Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=free_bytes, free_bytes=free_bytes))


class FakeMemory:
    """A memory of `total_bytes`, of which the file `<name>.gguf` needs `sizes[name]`, all of them or it does not run.

    No model runs with a longer context than `max_n_ctx`. `most_bytes` is the most that was held at once.
    """

    is_limited = True

    def __init__(self, total_bytes: int, sizes: Mapping[str, int], max_n_ctx: int = 1 << 30) -> None:
        self.most_bytes = 0
        self.max_n_ctx = max_n_ctx
        self._total_bytes = total_bytes
        self._sizes = sizes

    def machine(self, loaded: Sequence[LoadedModel]) -> Machine:
        """Return a machine with the memory that `loaded` leave free."""
        held_bytes = sum(model.held_bytes[HOST_NAME] for model in loaded)
        self.most_bytes = max(self.most_bytes, held_bytes)
        return host_with(self._total_bytes - held_bytes)

    def held_bytes(self, path: Path, plan: Plan | None) -> Mapping[str, int]:
        """Return the size of the model at `path`."""
        return {HOST_NAME: self._sizes[path.stem]}

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        """Return a demand for all of its bytes."""
        return lambda machine: float(self._fits(path, config, machine))

    def check(self, path: Path, config: EngineConfig, machine: Machine) -> None:
        """Refuse a model that is too large, unless the user has confirmed it."""
        if not self._fits(path, config, machine) and config.when_unfit is not UnfitPolicy.LOAD:
            raise EngineError(f"{path.stem} is too large.", "Use a smaller one.")

    def _fits(self, path: Path, config: EngineConfig, machine: Machine) -> bool:
        return config.n_ctx <= self.max_n_ctx and self._sizes[path.stem] <= machine.host.free_bytes
