"""What models hold and what another one needs, in bytes of this machine's memories.

Owns asking: the planner, from headers alone; the system, for what is free; workers, for what they were planned to take.
Knows nothing of whose turn it is. What imports numbers is imported when it is first asked, after the service has begun.

What a process holds of the processor's memory. None holds nothing, nor does a process that has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.library.local.model_files import stat_model
from app.protocol.plan import Plan
from app.service.pool.eviction import LoadedModel, ModelDemand
from app.settings.parsing import parse_byte_size, parse_rpc_endpoints
from app.settings.settings import Settings
from offload.devices.machine import HOST_NAME, Machine
from offload.format import memory
from quantizer.errors import EngineError

__all__ = ["MachineMemory", "Memory", "private_bytes", "resident_bytes"]

if TYPE_CHECKING:
    from offload.footprint.model import PlannedModel
    from offload.placement.assessment import Assessment
    from offload.plan import PlanConstraints
    from offload.speed.cost_model import Rates


_PLENTY_BYTES = 1 << 60


class Memory(Protocol):
    """What the service asks of this machine's memory. Its methods take their time: they are called in threads."""

    @property
    def is_limited(self) -> bool:
        """Whether even a model that is alone has to be asked about."""

    def machine(self, loaded: Sequence[LoadedModel]) -> Machine:
        """Return this machine as free as it is with `loaded` loaded to the full. Raises EngineError."""

    def held_bytes(self, path: Path, plan: Plan | None) -> Mapping[str, int]:
        """Return what the model at `path` holds of each device; `plan` is its worker's, as in its status."""

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        """Return what the model at `path` comes to. Raises ModelFileError when the gate does not let it through."""

    def check(self, path: Path, config: EngineConfig, machine: Machine) -> None:
        """Raise the planner's refusal, an EngineError, where the model at `path` is not to be loaded on `machine`."""


class MachineMemory:
    """The memory of this machine, of which models may take what the setting `max_memory` says."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError for a size that is none."""
        self._settings = settings
        self._max_bytes = parse_byte_size(settings.max_memory) if settings.max_memory else None
        self._has_gpu = settings.gpu and settings.engine == "llama"  # until a look has told otherwise

    @property
    def is_limited(self) -> bool:
        """Whether models may take less than there is."""
        return self._max_bytes is not None

    def machine(self, loaded: Sequence[LoadedModel]) -> Machine:
        """Look at memory, and at GPUs where there are any, which takes a second. Raises EngineError.

        Systems count the pages of mapped files as free though a model reads them for every token: of what a worker
        was planned to hold, that part is not.
        """
        from app.engine.load.machine import detect_machine
        from app.engine.load.machine_file import MachineFile, this_build

        kept = MachineFile(self._settings.cache_dir / "bandwidth.json", this_build())
        machine = detect_machine(self._gpus(), kept)
        free_bytes = machine.host.free_bytes - sum(map(_unseen_bytes, loaded))  # below 0 where too much was promised
        if self._max_bytes is not None:
            from offload.placement.search import margin_bytes

            held_bytes = sum(model.held_bytes.get(HOST_NAME, 0) for model in loaded)
            # The margin is for other programs, which the limit leaves room for already.
            free_bytes = min(free_bytes, self._max_bytes - held_bytes + margin_bytes(machine.host))
        return replace(machine, host=replace(machine.host, free_bytes=free_bytes))

    def held_bytes(self, path: Path, plan: Plan | None) -> Mapping[str, int]:
        """Return what the plan says; where it places nothing, or there is none, the size of the file."""
        if plan is None or not plan.devices:
            return {HOST_NAME: stat_model(path).n_bytes}
        return {device.name: device.n_bytes for device in plan.devices}

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        """Return how fast the model would answer; where nobody can tell, how many of its layers GPUs would hold."""
        model = _planned(path, config)
        return lambda machine: _worth(self._found(model, config, machine))

    def check(self, path: Path, config: EngineConfig, machine: Machine) -> None:
        """Raise UnfitError where a yes is needed first, EngineError where the model is too large."""
        from app.engine.load.sizing import check_fit
        from offload.plan import plan

        model = _planned(path, config)
        check_fit(plan(model, self._question(config, machine), machine, self._rates(machine)), config.when_unfit)
        found = self._found(model, config, machine)
        if self._max_bytes is not None and found.placement is None and config.when_unfit is not UnfitPolicy.LOAD:
            needed, allowed = memory(found.profile.total_bytes), memory(self._max_bytes)
            cause = f"{path.stem} needs {needed}, and models may take {allowed} together."
            raise EngineError(cause, "Raise max_memory, use a smaller --ctx, or load it all the same with --yes.")

    def _found(self, model: PlannedModel, config: EngineConfig, machine: Machine) -> Assessment:
        """Return what comes of `model`, in the setting that a worker chooses: without a GPU that gives up nothing."""
        from offload.placement.assessment import assess
        from offload.plan import best_assessment

        question, rates = self._question(config, machine), self._rates(machine)
        if machine.gpus:
            return best_assessment(model, question, machine, rates)
        plenty = replace(machine, host=replace(machine.host, free_bytes=_PLENTY_BYTES))
        return assess(model.profile(best_assessment(model, question, plenty, rates).profile.setting), machine, rates)

    def _question(self, config: EngineConfig, machine: Machine) -> PlanConstraints:
        from app.engine.load.sizing import plan_constraints

        return replace(plan_constraints(self._settings, machine), n_ctx=config.n_ctx)

    def _rates(self, machine: Machine) -> Rates:
        from app.engine.load.run_history import calibrated_rates

        return calibrated_rates(machine, self._settings.cache_dir, self._settings.threads)

    def _gpus(self) -> list[dict[str, Any]]:
        """Return the GPUs that a child process lists; a machine without any is asked once."""
        from app.engine.load.machine import list_gpus

        if not self._has_gpu:
            return []
        gpus = list_gpus(parse_rpc_endpoints(self._settings.rpc))
        self._has_gpu = bool(gpus)
        return gpus


def _planned(path: Path, config: EngineConfig) -> PlannedModel:
    from app.engine.load.auxiliary_models import read_auxiliary_models
    from offload.footprint.model import PlannedModel
    from quantizer.gguf.validation import tensors_of, validate_gguf

    header = validate_gguf(path)
    adapters = [Path(file) for file, _ in config.lora]
    companions = read_auxiliary_models(header, draft_path=config.draft_path, adapters=adapters)
    return PlannedModel(header, tensors_of(header), companions=companions)


def _worth(found: Assessment) -> float:
    if found.placement is None:
        return 0.0
    return found.decode_tps if found.decode_tps is not None else 1.0 + found.placement.n_on_gpus


def _unseen_bytes(model: LoadedModel) -> int:
    """What a model holds of the processor's memory, or is about to, and the system still counts as free."""
    held_bytes = model.held_bytes.get(HOST_NAME, 0)
    return max(0, held_bytes - private_bytes(model.worker_pid))


def resident_bytes(pid: int | None) -> int:
    """Return the memory that a process has in use."""
    info = _info(pid)
    return int(info.rss) if info is not None else 0


def private_bytes(pid: int | None) -> int:
    """Return it without pages of files, which systems count as free; all of it where the system does not tell them
    apart."""
    info = _info(pid)
    return int(info.rss - getattr(info, "shared", 0)) if info is not None else 0


def _info(pid: int | None) -> Any:
    try:
        return psutil.Process(pid).memory_info() if pid is not None else None
    except psutil.Error:  # it has just ended
        return None
