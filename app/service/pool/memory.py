"""The memory that models hold and that another one needs, by device of this machine, and which are unloaded for it.

One model loads after another, in the order of the requests. Others are unloaded where needed: idle ones first, then
busy ones, which leave after their last answer; of each the least recently used first.

Figures come from the planner, which reads headers; from the system, for free memory; from the workers' plans. numpy is
imported only when it is needed, after the service has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psutil

from app.engine.messages import EngineConfig, UnfitPolicy
from app.library.local.model_files import stat_model
from app.protocol.plan import Plan
from app.service.pool.engine_client import EngineClient
from app.settings.parsing import parse_byte_size, parse_rpc_endpoints
from app.settings.settings import Settings
from offload.devices.machine import HOST_NAME, Device, Machine
from offload.format import format_memory
from quantizer.system.errors import EngineError, UserError

if TYPE_CHECKING:
    from offload.devices.gpus import ListedGpu
    from offload.footprint.model import PlannedModel
    from offload.placement.assessment import Assessment
    from offload.speed.cost_model import Rates


# How well a model would run on a machine with what is free there: 0 for not at all, never less for more memory.
ModelDemand: TypeAlias = Callable[[Machine], float]
_UNLIMITED_BYTES = 1 << 60
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


class Memory(Protocol):
    """The memory of a machine. Its methods block, and are called in threads."""

    @property
    def is_limited(self) -> bool:
        """Whether models may take less than there is, so that even a model that is alone needs a check."""

    def machine(self, loaded: Sequence[LoadedModel]) -> Machine:
        """Return the machine with the memory that is free when `loaded` are fully loaded. Raises EngineError."""

    def held_bytes(self, path: Path, plan: Plan | None) -> Mapping[str, int]:
        """Return the bytes that the model at `path` holds of each device; `plan` is the one in its status."""

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        """Return how well the model at `path` would run. Raises ModelFileError for an invalid file."""

    def check(self, path: Path, config: EngineConfig, machine: Machine) -> None:
        """Raise the planner's refusal, an EngineError, if the model at `path` must not be loaded on `machine`."""


class MachineMemory:
    """The memory of this machine, of which models may take `max_memory`. Raises UsageError for an invalid size."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._max_bytes = parse_byte_size(settings.max_memory) if settings.max_memory else None
        self._has_gpu = settings.gpu and settings.engine == "llama"  # until a survey finds none

    @property
    def is_limited(self) -> bool:
        return self._max_bytes is not None

    def machine(self, loaded: Sequence[LoadedModel]) -> Machine:
        """Survey memory, and GPUs, which takes a second. Raises EngineError."""
        from app.engine.load.machine import detect_machine, list_gpus

        gpus: list[ListedGpu] = []
        if self._has_gpu:  # a child process lists them; a machine without any is asked once
            gpus = list_gpus(parse_rpc_endpoints(self._settings.rpc), self._settings.cache_dir)
            self._has_gpu = bool(gpus)
        machine = detect_machine(gpus, self._settings.cache_dir)
        # Systems count the pages of mapped files as free though a model reads them for every token.
        uncounted = sum(
            max(0, model.held_bytes.get(HOST_NAME, 0) - private_bytes(model.worker_pid)) for model in loaded
        )
        free_bytes = machine.host.free_bytes - uncounted  # below 0 if too much is loaded
        if self._max_bytes is not None:
            from offload.placement.shares import margin_bytes

            held_bytes = sum(model.held_bytes.get(HOST_NAME, 0) for model in loaded)
            # The margin is for other programs, for which the limit leaves memory already.
            free_bytes = min(free_bytes, self._max_bytes - held_bytes + margin_bytes(machine.host))
        return replace(machine, host=replace(machine.host, free_bytes=free_bytes))

    def held_bytes(self, path: Path, plan: Plan | None) -> Mapping[str, int]:
        if plan is None or not plan.devices:
            return {HOST_NAME: stat_model(path).n_bytes}
        return {device.name: device.n_bytes for device in plan.devices}

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        """Return how fast the model would answer or, where that is unknown, how many layers GPUs would hold."""
        model = _planned(path, config, self._settings.cache_dir)
        plain = _without_found(model, config)

        def worth(machine: Machine) -> float:
            found = _worth(self._assess(model, config, machine))
            return found if found or plain is model else _worth(self._assess(plain, config, machine))

        return worth

    def check(self, path: Path, config: EngineConfig, machine: Machine) -> None:
        """Raise UnfitError where the user has to confirm, EngineError where the model is too large."""
        from app.engine.load.planner import check_fit, requested_run
        from offload.plan import plan

        # What was found for the model, a draft head, a copy or a projector, gives way to it in the worker.
        model = _without_found(_planned(path, config, self._settings.cache_dir), config)
        requested = requested_run(config, is_fused=bool(machine.gpus))
        check_fit(plan(model, requested, machine, self._rates(config, machine)), config.when_unfit)
        assessment = self._assess(model, config, machine)
        if self._max_bytes is not None and assessment.placement is None and config.when_unfit is not UnfitPolicy.LOAD:
            needed, allowed = format_memory(assessment.profile.total_bytes), format_memory(self._max_bytes)
            cause = f"{model.header.path.stem} needs {needed}, and models may take {allowed} together."
            raise EngineError(cause, "Raise max_memory, use a smaller --ctx, or load it all the same with --yes.")

    def _assess(self, model: PlannedModel, config: EngineConfig, machine: Machine) -> Assessment:
        """Assess `model` in the config that a worker would choose: without a GPU, one for unlimited memory."""
        from app.engine.load.planner import requested_run
        from offload.placement.assessment import assess
        from offload.plan import best_assessment

        requested, rates = requested_run(config, is_fused=bool(machine.gpus)), self._rates(config, machine)
        if machine.gpus:
            return best_assessment(model, requested, machine, rates)
        unlimited = replace(machine, host=replace(machine.host, free_bytes=_UNLIMITED_BYTES))
        run_config = best_assessment(model, requested, unlimited, rates).profile.run_config
        return assess(model.profile(run_config), machine, rates)

    def _rates(self, config: EngineConfig, machine: Machine) -> Rates:
        from app.engine.load.run_history import fitted_rates

        return fitted_rates(machine, self._settings.cache_dir, config.n_threads)


def _planned(path: Path, config: EngineConfig, cache_dir: Path) -> PlannedModel:
    from app.engine.load.auxiliary_models import read_auxiliary_models, with_found_draft, with_sound_projector
    from offload.footprint.model import PlannedModel
    from quantizer.gguf.validation import tensors_of, validate_gguf

    header = validate_gguf(path)
    config, _ = with_found_draft(config, header, cache_dir)
    config, _ = with_sound_projector(config, header)
    adapters = [Path(file) for file, _ in config.lora]
    projector = Path(config.projector_path) if config.projector_path else None
    auxiliary = read_auxiliary_models(header, draft_path=config.draft_path, adapters=adapters, projector=projector)
    return PlannedModel(header, tensors_of(header), auxiliary=auxiliary)


def _without_found(model: PlannedModel, config: EngineConfig) -> PlannedModel:
    """Return `model` without the draft and the projector that were found for it; the same object if none was."""
    found = model.auxiliary
    draft = found.draft if config.draft_path else None
    projector = found.projector if config.has_chosen_projector else None
    if (draft, projector) == (found.draft, found.projector):
        return model
    return replace(model, auxiliary=replace(found, draft=draft, projector=projector))


def _worth(assessment: Assessment) -> float:
    from offload.placement.assessment import FitLevel

    if assessment.placement is None or assessment.verdict is FitLevel.WONT_RUN:  # the user's placement may not fit
        return 0.0
    tps = assessment.decode_tps
    return tps if tps is not None else 1.0 + assessment.placement.n_on_gpus


def machine_without(machine: Machine, leaving: Iterable[LoadedModel]) -> Machine:
    """Return `machine` with the memory of `leaving` free; memory that a GPU shares with the CPU is free to both."""
    leaving = tuple(leaving)
    freed = {
        device.name: sum(model.held_bytes.get(device.name, 0) for model in leaving)
        for device in (machine.host, *machine.gpus)
    }
    shared = freed[machine.host.name] + sum(freed[gpu.name] for gpu in machine.gpus if gpu.shares_host)

    def freer(device: Device) -> Device:
        return replace(device, free_bytes=device.free_bytes + (shared if device.shares_host else freed[device.name]))

    return Machine(freer(machine.host), tuple(map(freer, machine.gpus)))


def resident_bytes(pid: int | None) -> int:
    """Return the memory of a process; 0 for None and for one that has ended."""
    info = _info(pid)
    return int(info.rss) if info is not None else 0


def private_bytes(pid: int | None) -> int:
    """Return the memory of a process without mapped files, which systems count as free, where that is known."""
    info = _info(pid)
    return int(info.rss - getattr(info, "shared", 0)) if info is not None else 0


def _info(pid: int | None) -> Any:
    try:
        return psutil.Process(pid).memory_info() if pid is not None else None
    except psutil.Error:  # it has just ended
        return None


class LoadQueue:
    """Admits engines to `memory`, which they share with the other `engines`. While an engine waits for models that are
    at work, new requests to those wait behind it. So two models that do not fit together take turns, however many
    requests there are."""

    def __init__(self, memory: Memory, engines: Callable[[], Iterable[EngineClient]]) -> None:
        self._memory = memory
        self._engines = engines
        self._turn = asyncio.Lock()
        self._previous = asyncio.Event()  # the previous engine has loaded, or failed to
        self._previous.set()
        self._has_changed = asyncio.Event()

    def look_again(self) -> None:
        """Look whether there is room: an engine is idle, or its worker has ended."""
        self._has_changed.set()

    async def admit(self, engine: EngineClient) -> None:
        """Wait until `engine` may load. Raises the planner's refusal if it would not run even alone."""
        async with self._turn:
            await self._previous.wait()  # what it takes is seen only when it is loaded
            while await self._make_room(engine):
                pass
            self._previous = engine.settled

    async def fits(self, engine: EngineClient, config: EngineConfig) -> bool:
        """Return whether `engine` would run with `config`, if it were unloaded first, and other idle ones with it."""
        engines = [other for other in self._engines() if other.holds_memory]
        loaded = [self._loaded(other) for other in engines]
        leaving = [model for model, other in zip(loaded, engines, strict=True) if other is engine or not other.is_busy]
        return await asyncio.to_thread(self._fits, engine, config, loaded, leaving)

    def _fits(
        self, engine: EngineClient, config: EngineConfig, loaded: list[LoadedModel], leaving: list[LoadedModel]
    ) -> bool:
        try:
            machine = machine_without(self._memory.machine(loaded), leaving)
            self._memory.check(engine.model_path, config, machine)
            return self._memory.demand(engine.model_path, config)(machine) > 0
        except UserError:  # it would be refused
            return False

    async def evicted_for(self, path: Path, config: EngineConfig) -> list[EngineClient] | None:
        """Return which engines would be unloaded for the model at `path` to load with `config`; None where it would not
        run even alone. Raises ModelFileError for an invalid file, EngineError where the machine cannot be surveyed."""
        engines = [other for other in self._engines() if other.holds_memory]
        loaded = [self._loaded(other) for other in engines]
        leaving = await asyncio.to_thread(self._leaving_for, path, config, loaded)
        of_model = {id(model): other for model, other in zip(loaded, engines, strict=True)}
        return None if leaving is None else [of_model[id(model)] for model in leaving]

    def _leaving_for(self, path: Path, config: EngineConfig, loaded: list[LoadedModel]) -> list[LoadedModel] | None:
        own = [model for model in loaded if model.path == path]  # it would be loaded again
        machine = machine_without(self._memory.machine(loaded), own)
        others = [model for model in loaded if model.path != path]
        return plan_eviction(self._memory.demand(path, config), others, machine)

    async def _make_room(self, engine: EngineClient) -> bool:
        """Evict other models as planned; return whether there were any: then the plan has to be made again."""
        others = [other for other in self._engines() if other is not engine]
        for other in others:
            await other.ended()
        others = [other for other in others if other.holds_memory]
        if not others and not self._memory.is_limited:
            return False  # the worker plans for itself
        loaded = [self._loaded(other) for other in others]
        leaving = await asyncio.to_thread(self._leaving, engine, loaded)
        of_model = {id(model): other for model, other in zip(loaded, others, strict=True)}
        evicted = [of_model[id(model)] for model in leaving]
        with ExitStack() as closed:
            for other in evicted:  # block new uses, wait for the running ones, and unload in order
                closed.enter_context(other.closed())
            while any(other.holds_memory and other.is_busy for other in evicted):
                self._has_changed.clear()
                await self._has_changed.wait()
            for other in evicted:
                other.unload()
                await other.ended()
        return bool(leaving)

    def _loaded(self, engine: EngineClient) -> LoadedModel:
        return LoadedModel(
            path=engine.model_path,
            worker_pid=engine.worker_pid,
            held_bytes=self._memory.held_bytes(engine.model_path, engine.status.plan),
            last_used_s=engine.last_used_s,
            is_busy=engine.is_busy,
        )

    def _leaving(self, engine: EngineClient, loaded: list[LoadedModel]) -> list[LoadedModel]:
        machine = self._memory.machine(loaded)
        leaving = plan_eviction(self._memory.demand(engine.model_path, engine.config), loaded, machine)
        if leaving is None:
            self._memory.check(engine.model_path, engine.config, machine_without(machine, loaded))
            return _by_use(loaded)  # the user has agreed to load it anyway: it gets all memory there is
        return leaving


def plan_eviction(demand: ModelDemand, loaded: Sequence[LoadedModel], machine: Machine) -> list[LoadedModel] | None:
    """Return which of `loaded` to unload for `demand` to run as well as alone on `machine`, idle ones first; `machine`
    is as free as it is with all of them loaded. None where it would not run even alone."""
    alone = demand(machine_without(machine, loaded))
    if alone <= 0:
        return None

    def suffices(leaving: list[LoadedModel]) -> bool:
        return demand(machine_without(machine, leaving)) >= _AS_GOOD * alone

    leaving: list[LoadedModel] = []
    candidates = _by_use(loaded)
    while not suffices(leaving) and candidates:
        leaving.append(candidates.pop(0))
    for model in reversed(leaving):  # the most recently used is the first to be spared
        others = [other for other in leaving if other is not model]
        if suffices(others):
            leaving = others
    return leaving


def _by_use(models: Iterable[LoadedModel]) -> list[LoadedModel]:
    return sorted(models, key=lambda model: (model.is_busy, model.last_used_s))
