"""Plans for requests, each in milliseconds: headers and the survey of this machine are cached.

`offload` computes and `app.library` finds models. numpy is imported only when it is needed.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.local.projectors import projector_stamp
from app.protocol.plan import MeasuredRun, PlanReport, PlanRequest, describe_plan
from app.service.pool.memory import LoadedModel, private_bytes
from app.settings.settings import Settings

if TYPE_CHECKING:
    from app.library.machine_fit.planning import PlanningContext
    from offload.devices.machine import Device, Machine
    from offload.footprint.model import PlannedModel

_MAX_AGE_S = 300.0  # of the survey, and of models that are not on this machine
_MAX_MODELS = 8
_MAX_MEASURED_RUNS = 64


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
            is_old = time.monotonic() - self._surveyed_s > _MAX_AGE_S
            machine = self._machine
            if machine is None or is_fresh or is_old or (machine.gpus and pids != self._surveyed_pids):
                machine = self._machine = self._survey()
                self._surveyed_pids, self._surveyed_s = pids, time.monotonic()
        return replace(machine, host=replace(machine.host, free_bytes=self._free_bytes()))


def machine_for_reload(machine: Machine, path: Path, loaded: Sequence[LoadedModel]) -> Machine:
    """Return `machine` without the model at `path`, which a reload unloads first."""
    for model in loaded:
        if model.path == path:
            gpus = tuple(_more(gpu, model.held_bytes.get(gpu.name, 0)) for gpu in machine.gpus)
            machine = replace(machine, host=_more(machine.host, private_bytes(model.worker_pid)), gpus=gpus)
    return machine


def _more(device: Device, n_bytes: int) -> Device:
    return replace(device, free_bytes=min(device.free_bytes + n_bytes, max(device.total_bytes, device.free_bytes)))


@dataclass(frozen=True, slots=True)
class _CachedModel:
    """A model with the notice of how it was found (empty for one in the library), and when it was read."""

    model: PlannedModel
    notice: str
    stamp: str
    read_s: float

    @property
    def is_current(self) -> bool:
        """Whether its files and what may be its projector are unchanged; of a model of the hub, whether it was read
        lately."""
        if self.notice:
            return time.monotonic() - self.read_s < _MAX_AGE_S
        return self.stamp == _stamp(self.model)


class PlanService:
    """Makes plans under `settings`. Its methods block, and may be called in several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, _CachedModel] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, request: PlanRequest, loaded: Sequence[LoadedModel] = ()) -> PlanReport:
        """Return the plan for `request`, with the measured speed of the model on this machine.

        Raises UnknownModelError, HubError or ModelFileError for an unavailable model, UsageError for an invalid
        request, EngineError where the machine cannot be surveyed.
        """
        from app.library.machine_fit.planning import plan_of, plan_of_absent
        from offload.footprint.kv_cache import KV_TYPES, KvTypes, supports_kv_types

        settings = replace(
            self._settings,
            ctx=request.n_ctx or self._settings.ctx,
            kv_type=request.kv_type or self._settings.kv_type,
            parallel=request.n_sequences or self._settings.parallel,
            threads=request.n_threads or self._settings.threads,
        )
        known = self._model(request, settings)
        context = self._context(request, settings, known, loaded)
        if not request.is_full:
            found = context.plan(known.model, wants_remedies=False)
        elif known.notice:
            found = plan_of_absent(known.model, known.notice, context)
        else:
            found = plan_of(known.model, settings, context, is_here=request.is_here)
        has_records = request.is_here and not known.notice
        return PlanReport.of(
            describe_plan(found),
            request,
            n_ctx_train=known.model.n_ctx_train,
            kv_types=tuple(name for name in KV_TYPES if supports_kv_types(KvTypes(name, name), known.model.kv_shape)),
            measured=self._measured(known.model, context.machine) if has_records else (),
        )

    @cached_property
    def _machines(self) -> MachineCache:
        from app.engine.load.machine import survey
        from app.settings.parsing import parse_rpc_endpoints
        from offload.devices.host import host_memory

        endpoints = parse_rpc_endpoints(self._settings.rpc)
        return MachineCache(
            lambda: survey(endpoints, self._settings.cache_dir).machine, lambda: host_memory().free_bytes
        )

    def _model(self, request: PlanRequest, settings: Settings) -> _CachedModel:
        """Return the requested model; its header is read once for each version of the file."""
        from app.library.hub.selection import find_model
        from app.library.machine_fit.planning import planning_context, with_projector

        with self._lock:
            known = self._known.get(request.model)
        if known is None or not known.is_current:

            def here() -> PlanningContext:
                return planning_context(settings, self._machine(request, ()))

            model, notice = find_model(request.model, settings, here)
            stamp = "" if notice else _stamp(model)
            model = model if notice else with_projector(model, settings.projector)
            known = _CachedModel(model, notice, stamp, time.monotonic())
        with self._lock:
            self._known[request.model] = known
            self._known.move_to_end(request.model)
            while len(self._known) > _MAX_MODELS:
                self._known.popitem(last=False)
        return known

    def _machine(self, request: PlanRequest, loaded: Sequence[LoadedModel]) -> Machine:
        from app.library.machine_fit.planning import parse_machine

        def here() -> Machine:
            return self._machines.machine(loaded, is_fresh=request.is_fresh)

        return here() if request.is_here else parse_machine(here, request.vram, request.ram or None)

    def _context(
        self, request: PlanRequest, settings: Settings, known: _CachedModel, loaded: Sequence[LoadedModel]
    ) -> PlanningContext:
        from app.library.machine_fit.planning import local_planning_context, planning_context

        machine = self._machine(request, loaded)
        if request.is_here:
            context = local_planning_context(settings, machine_for_reload(machine, known.model.header.path, loaded))
        else:
            context = planning_context(settings, machine)
        return replace(context, requested=replace(context.requested, gpu_layers=request.gpu_layers))

    def _measured(self, model: PlannedModel, machine: Machine) -> tuple[MeasuredRun, ...]:
        """Return the speeds of the newest answers and prompts of the model on this machine, oldest first."""
        from app.engine.load.machine_file import model_key
        from app.engine.load.run_history import RunHistory, machine_key

        key = model_key(model.header.path)
        records = RunHistory(self._settings.cache_dir).records(machine_key(machine))
        return tuple(
            MeasuredRun(
                kind=record.kind,
                depth=record.depth,
                tps=round(record.tokens_per_s, 3),
                gpu_layers=record.gpu_layers,
                at_s=record.at_s,
            )
            for record in [record for record in records if record.model == key][-_MAX_MEASURED_RUNS:]
        )


def _stamp(model: PlannedModel) -> str:
    path = model.header.path
    return f"{path.stat().st_mtime_ns} {projector_stamp(path)}"
