"""Plans for whoever asks the service, each in milliseconds: headers and the look at this machine are kept for a while.

Owns what is kept. The arithmetic is `offload`'s, the ways to a model are `app.library`'s. Knows nothing of HTTP. What
imports numbers is imported when it is first asked.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from app.protocol.plan import MeasuredRun, PlanReport, PlanRequest, describe_plan
from app.service.models.machine_cache import MachineCache, machine_for_reload
from app.service.pool.eviction import LoadedModel
from app.settings.settings import Settings

if TYPE_CHECKING:
    from app.library.machine_fit.planning import PlanningContext
    from offload.devices.machine import Machine
    from offload.footprint.model import PlannedModel
    from offload.plan import Plan

__all__ = ["PlanService"]

_N_MODELS, _MODEL_KEPT_S = 8, 300.0
_N_MEASURED = 64


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that was asked for: its header, what to say of how it was found, and since when that is known."""

    model: PlannedModel
    notice: str
    changed_s: float
    since_s: float

    @property
    def is_current(self) -> bool:
        """Whether its file is still the same; of one that is elsewhere, whether it was asked for of late."""
        if self.notice:
            return time.monotonic() - self.since_s < _MODEL_KEPT_S
        return self.changed_s == _changed_s(self.model)


class PlanService:
    """Answers wishes under `settings`. Its methods take their time and may be called in several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, request: PlanRequest, loaded: Sequence[LoadedModel] = ()) -> PlanReport:
        """Return the plan for `request`, with what was measured of the model here.

        Raises UnknownModelError, HubError or ModelFileError for an unavailable model, UsageError for an invalid
        request, EngineError where the machine or llama.cpp cannot be asked.
        """
        from offload.footprint.kv_cache import KV_TYPES, KvTypes, can_have

        settings = _settings_for(request, self._settings)
        known = self._model(request, settings)
        wanted = self._circumstances(request, settings, known, loaded)
        found = _planned(request, settings, known, wanted)
        has_records = request.is_here and not known.notice
        return PlanReport.of(
            describe_plan(found),
            request,
            n_ctx_train=known.model.n_ctx_train,
            kv_types=tuple(name for name in KV_TYPES if can_have(KvTypes(name, name), known.model.kv_shape)),
            measured=self._measured(known.model, wanted.machine) if has_records else (),
        )

    @cached_property
    def _look(self) -> MachineCache:
        from app.engine.load.machine import survey
        from app.settings.parsing import parse_rpc_endpoints
        from offload.devices.host_memory import host_memory

        endpoints = parse_rpc_endpoints(self._settings.rpc)
        return MachineCache(lambda: survey(endpoints).machine, lambda: host_memory().free_bytes)

    def _model(self, request: PlanRequest, settings: Settings) -> _Known:
        """Return the model that is meant, its header read once for as long as the file stays the same."""
        from app.library.hub.lookup import find_model
        from app.library.machine_fit.planning import planning_context

        with self._lock:
            known = self._known.get(request.model)
        if known is None or not known.is_current:

            def here() -> PlanningContext:
                return planning_context(settings, self._machine(request, ()))

            model, notice = find_model(request.model, settings, here)
            known = _Known(model, notice, 0.0 if notice else _changed_s(model), time.monotonic())
        with self._lock:
            self._known[request.model] = known
            self._known.move_to_end(request.model)
            while len(self._known) > _N_MODELS:
                self._known.popitem(last=False)
        return known

    def _machine(self, request: PlanRequest, loaded: Sequence[LoadedModel]) -> Machine:
        from app.library.machine_fit.machine_spec import parse_machine

        def here() -> Machine:
            return self._look.machine(loaded, is_fresh=request.is_fresh)

        return here() if request.is_here else parse_machine(here, request.vram, request.ram or None)

    def _circumstances(
        self, request: PlanRequest, settings: Settings, known: _Known, loaded: Sequence[LoadedModel]
    ) -> PlanningContext:
        from app.library.machine_fit.planning import local_planning_context, planning_context

        machine = self._machine(request, loaded)
        if request.is_here:
            wanted = local_planning_context(settings, machine_for_reload(machine, known.model.header.path, loaded))
        else:
            wanted = planning_context(settings, machine)
        return replace(wanted, question=replace(wanted.question, gpu_layers=request.gpu_layers))

    def _measured(self, model: PlannedModel, machine: Machine) -> tuple[MeasuredRun, ...]:
        """Return how fast the newest answers and prompts of the model were here, the oldest first."""
        from app.engine.load.machine_file import model_key
        from app.engine.load.run_history import machine_key, run_history

        key = model_key(model.header.path)
        records = run_history(self._settings.cache_dir).records(machine_key(machine))
        return tuple(
            MeasuredRun(
                kind=record.kind,
                depth=record.depth,
                tps=round(record.tokens_per_s, 3),
                gpu_layers=record.gpu_layers,
                at_s=record.at_s,
            )
            for record in [record for record in records if record.model == key][-_N_MEASURED:]
        )


def _settings_for(request: PlanRequest, settings: Settings) -> Settings:
    return replace(
        settings,
        ctx=request.n_ctx or settings.ctx,
        kv_type=request.kv_type or settings.kv_type,
        parallel=request.n_sequences or settings.parallel,
        threads=request.n_threads or settings.threads,
    )


def _planned(request: PlanRequest, settings: Settings, known: _Known, wanted: PlanningContext) -> Plan:
    from app.library.machine_fit.planning import plan_of, plan_of_absent

    if not request.is_full:
        return wanted.plan(known.model, wants_remedies=False)
    if known.notice:
        return plan_of_absent(known.model, known.notice, wanted)
    return plan_of(known.model, settings, wanted, is_here=request.is_here)


def _changed_s(model: PlannedModel) -> float:
    return model.header.path.stat().st_mtime
