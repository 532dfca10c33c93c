"""The library and the planner for requests: lists with verdicts, searches, model info, imports, removals, plans.

All of it runs in threads. Headers, verdicts and the survey of the machine are cached between requests. `offload`
computes and `app.library` finds models; numpy is imported only when it is needed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.common.event_log import log_event
from app.library.external import find_external_models, recipe_of, weights_of
from app.library.local.index import Index, LibraryEntry, forget_missing, list_entries, read_entry
from app.library.local.model_files import ModelRef
from app.library.local.model_record import ModelDescription, describe_model
from app.library.local.projectors import projector_stamp
from app.library.local.removal import plan_removal, remove
from app.library.local.resolve import available, find_importable, resolve
from app.library.machine_fit.fit_cache import FitCache
from app.protocol.library import (
    HubRepository,
    ImportWay,
    LocalModel,
    MachineReport,
    ModelUpdate,
    PlacementResult,
    Recommendation,
    Recommendations,
    RemovalResult,
    TypeChoice,
)
from app.protocol.plan import PlanReport, PlanRequest, describe_plan
from app.service.pool.memory import LoadedModel, private_bytes
from app.service.threads import in_thread, run_in_thread
from app.settings.settings import Settings
from quantizer.system.errors import EngineError

if TYPE_CHECKING:
    from app.library.machine_fit.planning import PlanningContext
    from offload.devices.machine import Device, Machine
    from offload.footprint.model import PlannedModel


@dataclass(frozen=True, slots=True)
class Listing:
    """Models by their references; unless `is_complete`, more is being read about some of them. `folder` holds ours,
    `skipped` says why models of other programs are left out."""

    models: tuple[tuple[ModelRef, LocalModel], ...]
    is_complete: bool
    folder: str
    skipped: tuple[str, ...] = ()


class LibraryService:
    """The models on this machine: those of `settings` and of other programs."""

    def __init__(
        self, settings: Settings, fit_cache: FitCache | None = None, today: Callable[[], date] = date.today
    ) -> None:
        self._today = today
        self._settings = settings
        self._fit_cache = fit_cache or FitCache(settings)
        self._reading: asyncio.Task[None] | None = None
        self._fitting: asyncio.Task[None] | None = None  # beside it: a survey of a busy machine takes seconds
        self._arriving: frozenset[Path] = frozenset()  # when they were last read
        self._skipped: tuple[str, ...] = ()  # why models of other programs are left out
        self._unstored: dict[Path, LibraryEntry] = {}  # what was read while the index could not be written
        self._is_unknown_machine = False  # it could not be surveyed
        self._is_closing = threading.Event()
        self._recommending = threading.Lock()
        self._recommended: tuple[PlanningContext, tuple[Recommendation, ...]] | None = None

    async def listing(self, *, has_external: bool, is_fresh: bool = False) -> Listing:
        """Return what is known now, and read the rest in the background for a later call; with `has_external` also of
        other programs' models. `is_fresh` surveys the machine again. Raises StorageError."""
        if is_fresh:
            self._is_unknown_machine = False
            await asyncio.to_thread(self._fit_cache.forget)
        entries = await self._entries(has_external=has_external)
        unknown = [
            entry
            for entry in entries
            if not (entry.is_read and (self._is_unknown_machine or self._fit_cache.has(entry)))
        ]
        unread = [entry for entry in unknown if not entry.is_read]
        if unread and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(unread))
        if len(unknown) > len(unread) and (self._fitting is None or self._fitting.done()):
            self._fitting = asyncio.create_task(self._fit([entry for entry in unknown if entry.is_read]))
        arriving = {entry.ref.path for entry in unread} & self._arriving
        models = tuple(
            (entry.ref, replace(entry, is_arriving=entry.ref.path in arriving).describe(self._fit_cache.get(entry)))
            for entry in entries
        )
        is_complete = len(unknown) == len(arriving)  # a copy may take long
        return Listing(models, is_complete, str(self._settings.models_dir), self._skipped if has_external else ())

    async def search(self, words: str, limit: int) -> list[HubRepository]:
        """Return the hub's repositories for `words`, each quant with its verdict. Cancelling ends the search. Raises
        HubError where the hub cannot be reached."""
        from app.library.hub.access import hub_access_from_environment
        from app.library.hub.search import inspect_repos, list_repos

        async def found() -> list[HubRepository]:
            access, context = hub_access_from_environment(), self._fit_cache.here()
            log_event("service", access.notice)
            return await inspect_repos(list_repos(access, words, limit), access, context, lambda: None)

        return await run_in_thread(found)

    async def updates(self, name: str = "") -> list[ModelUpdate]:
        """Return whether the hub has newer revisions of the model `name`, or of all in the library. Cancelling ends it.
        Raises UnknownModelError, and HubError where the hub cannot be reached."""
        from app.library.hub.access import hub_access_from_environment
        from app.library.hub.updates import find_updates, hashed_models

        async def found() -> list[ModelUpdate]:
            refs = [resolve(name, self._settings)] if name else available(self._settings)
            with Index(self._settings.cache_dir) as index:
                models = hashed_models([ref for ref in refs if not ref.place], index)
            access = hub_access_from_environment()
            log_event("service", access.notice)
            return await find_updates(models, access)

        return await run_in_thread(found)

    async def close(self) -> None:
        self._is_closing.set()
        if tasks := {task for task in (self._reading, self._fitting) if task is not None}:
            await asyncio.wait(tasks)

    @in_thread
    def recommendations(self) -> Recommendations:
        """Return a recommendation for each role. To place a whole catalogue takes seconds, so they are kept until the
        machine is surveyed again or its measured speeds change. Raises EngineError."""
        from app.library.hub.catalogue import Role, catalogue_notice, read_catalogue
        from app.library.hub.selection import recommend_each

        self._fit_cache.renew()
        context = self._fit_cache.here()
        catalogue = read_catalogue()
        with self._recommending:  # the first screen and the list of models ask at once
            if self._recommended is None or self._recommended[0] is not context:
                self._recommended = context, recommend_each(catalogue.models, Role, context)
            found = self._recommended[1]
        return Recommendations(found, catalogue_notice(catalogue.dated, self._today()))

    @in_thread
    def show(self, name: str) -> ModelDescription:
        """Return the description of a model's files. Raises ModelFileError."""
        from quantizer.gguf.validation import validate_gguf

        ref = resolve(name, self._settings)
        header, recipe = validate_gguf(ref.path), recipe_of(ref)
        with Index(self._settings.cache_dir) as index:
            return describe_model(header, index, self._settings.cache_dir, recipe)

    @in_thread
    def types(self, name: str) -> list[TypeChoice]:
        from app.library.machine_fit.planning import quantize_source, type_choices

        context, source = self._fit_cache.here(), quantize_source(resolve(name, self._settings))
        return type_choices(source, context.machine.host.bytes_per_s or 0.0, context.fit)

    @in_thread
    def place(self, source: str, name: str, *, is_copy: bool) -> PlacementResult:
        """Import a model into the library as `localllm import` does. Raises as that does."""
        from app.library.local.placement import copy_model, link_model, plan_import

        plan = plan_import(find_importable(source, self._settings), name, self._settings.models_dir)
        with Index(self._settings.cache_dir) as index:
            if is_copy:
                copy_model(plan, index, lambda _n_bytes: None)
            way: ImportWay = "copy" if is_copy else link_model(plan, index)
        placed = resolve(str(plan.path), self._settings)
        return PlacementResult(placed.id, str(placed.path), plan.n_bytes, way)

    @in_thread
    def find(self, name: str) -> ModelRef:
        return resolve(name, self._settings)

    @in_thread
    def remove(self, ref: ModelRef, *, is_dry_run: bool) -> RemovalResult:
        """Remove `ref`, unless `is_dry_run`, and return what is deleted. Raises UsageError, StorageError."""
        removal = plan_removal(ref, self._settings.models_dir, cache_dir=self._settings.cache_dir)
        if is_dry_run:
            return removal
        remove(removal, self._settings.models_dir)
        with Index(self._settings.cache_dir) as index:
            index.forget(removal.paths)
        return removal

    @in_thread
    def diagnose(self) -> MachineReport:
        from app.library.machine_fit.diagnostics import collect_findings, describe_machine

        return describe_machine(collect_findings(self._settings, self._fit_cache.machine()))

    @in_thread
    def _entries(self, *, has_external: bool) -> list[LibraryEntry]:
        self._fit_cache.renew()
        with Index(self._settings.cache_dir) as index:
            forget_missing(self._settings.models_dir, index)
            external, skipped = find_external_models() if has_external else ((), ())
            found = list_entries((*available(self._settings), *external), index)
        if has_external:
            self._skipped = tuple(f"{folder.what} {folder.remedy}" for folder in skipped)
        read = ((self._unstored.get(entry.ref.path, entry), entry) for entry in found)
        return [known if known.is_read and known.disk == entry.disk else entry for known, entry in read]

    @in_thread
    def _read(self, entries: Sequence[LibraryEntry]) -> None:
        with Index(self._settings.cache_dir) as index:
            found = [read_entry(entry, index) for entry in self._until_closing(entries)]
            if index.problem:  # else each listing would read them again, and none were ever complete
                self._unstored |= {entry.ref.path: entry for entry in found}
        self._arriving = frozenset(entry.ref.path for entry in found if entry.is_arriving)

    @in_thread
    def _fit(self, entries: Sequence[LibraryEntry]) -> None:
        try:
            for entry in self._until_closing(entries):
                self._fit_cache.compute(entry)
        except EngineError:  # `localllm doctor` reports it; asking until all is known must not survey for ever
            self._is_unknown_machine = True

    def _until_closing(self, entries: Sequence[LibraryEntry]) -> Iterator[LibraryEntry]:
        for entry in entries:
            if self._is_closing.is_set():
                return
            yield entry


_MAX_AGE_S = 300.0  # of the survey, and of models that are not on this machine
_MAX_MODELS = 8


class MachineCache:
    """Caches `survey`, which takes about a second, for several threads; `free_bytes`, the free host memory, is called
    every time."""

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
    """A model with the notice of how it was found (empty for one here, which is at `ref`), and when it was read."""

    model: PlannedModel
    ref: ModelRef | None
    notice: str
    stamp: str
    read_s: float

    @property
    def is_current(self) -> bool:
        """Whether its files, its adapters and what may be its projector are unchanged; of a model of the hub, whether
        it was read lately."""
        if self.ref is None:
            return time.monotonic() - self.read_s < _MAX_AGE_S
        return self.stamp == _stamp(self.ref)


class PlanService:
    """Makes plans under `settings`. Its methods block, and may be called in several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, _CachedModel] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, request: PlanRequest, loaded: Sequence[LoadedModel] = ()) -> PlanReport:
        """Return the plan for `request`, with the measured speed of the model on this machine. Raises
        UnknownModelError, HubError or ModelFileError for an unavailable model, UsageError for an invalid request,
        EngineError where the machine cannot be surveyed."""
        from app.engine.load.run_history import runs_of
        from app.library.machine_fit import planning
        from app.settings.parsing import parse_byte_size
        from offload.footprint.kv_cache import KV_TYPES, KvTypes, supports_kv_types

        settings = replace(
            self._settings,
            ctx=request.n_ctx or self._settings.ctx,
            kv_type=request.kv_type or self._settings.kv_type,
            parallel=request.n_sequences or self._settings.parallel,
            threads=request.n_threads or self._settings.threads,
        )
        known, machine = self._model(request, settings), self._machine(request, loaded)
        if request.is_here:
            remaining = machine_for_reload(machine, known.model.header.path, loaded)
            context = planning.local_planning_context(settings, remaining)
        else:
            context = planning.planning_context(settings, machine)
        context = replace(context, requested=replace(context.requested, gpu_layers=request.gpu_layers))
        if not request.is_full:
            found = context.plan(known.model, wants_remedies=False)
        elif known.notice:
            found = planning.plan_of_absent(known.model, known.notice, context)
        else:
            found = planning.plan_of(known.model, settings, context, is_here=request.is_here)
        has_records = request.is_here and not known.notice
        return PlanReport.of(
            describe_plan(found, parse_byte_size(settings.max_memory) if settings.max_memory else 0),
            request,
            n_ctx_train=known.model.n_ctx_train,
            kv_types=tuple(name for name in KV_TYPES if supports_kv_types(KvTypes(name, name), known.model.kv_shape)),
            measured=runs_of(known.model.header.path, context.machine, settings.cache_dir) if has_records else (),
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
        from app.library.machine_fit.planning import planning_context, with_own_files

        with self._lock:
            known = self._known.get(request.model)
        if known is None or not known.is_current:
            model, notice = find_model(
                request.model, settings, lambda: planning_context(settings, self._machine(request, ()))
            )
            ref = None if notice else resolve(request.model, settings)
            stamp = "" if ref is None else _stamp(ref)
            model = model if ref is None else with_own_files(model, ref, settings.projector)
            known = _CachedModel(model, ref, notice, stamp, time.monotonic())
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


def _stamp(ref: ModelRef) -> str:
    return f"{ref.path.stat().st_mtime_ns} {projector_stamp(ref.path)} {weights_of(ref)}"
