"""The library for requests: lists with verdicts, searches, model info, imports, removals. All of it runs in threads.

The survey of the machine and verdicts are cached between requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from app.library.external import external_models
from app.library.local.index import Index, LibraryEntry, forget_missing, list_entries, read_entry
from app.library.local.model_files import ModelRef
from app.library.local.model_record import ModelDescription, describe_model
from app.library.local.removal import plan_removal, remove
from app.library.local.resolve import available, find_importable, resolve
from app.library.machine_fit.fit_cache import FitCache
from app.protocol.library import (
    HubRepository,
    ImportWay,
    LocalModel,
    MachineReport,
    PlacementResult,
    Recommendations,
    RemovalResult,
    TypeChoice,
)
from app.service.threads import in_thread, run_in_thread
from app.settings.settings import Settings
from quantizer.system.errors import EngineError


@dataclass(frozen=True, slots=True)
class Listing:
    """Models by their references; unless `is_complete`, more is being read about some of them. `folder` holds ours."""

    models: tuple[tuple[ModelRef, LocalModel], ...]
    is_complete: bool
    folder: str


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
        self._is_unknown_machine = False  # it could not be surveyed
        self._is_closing = threading.Event()

    async def listing(self, *, has_external: bool, is_fresh: bool = False) -> Listing:
        """Return what is known now, and read the rest in the background for a later call. Raises StorageError.

        `has_external` adds models of other programs, `is_fresh` surveys the machine again.
        """
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
            (
                entry.ref,
                replace(entry, is_arriving=entry.ref.path in arriving).describe(self._fit_cache.get(entry)),
            )
            for entry in entries
        )
        is_complete = len(unknown) == len(arriving)  # a copy may take long
        return Listing(models, is_complete, str(self._settings.models_dir))

    async def search(self, words: str, limit: int) -> list[HubRepository]:
        """Return the hub's repositories for `words`, each quant with its verdict.

        Cancelling ends the search. Raises HubError where the hub cannot be reached.
        """
        from app.library.hub.access import hub_access_from_environment
        from app.library.hub.search import inspect_repos, list_repos

        async def found() -> list[HubRepository]:
            access, context = hub_access_from_environment(), self._fit_cache.here()
            return await inspect_repos(list_repos(access, words, limit), access, context, lambda: None)

        return await run_in_thread(found)

    async def close(self) -> None:
        """Stop reading, after the current file."""
        self._is_closing.set()
        if tasks := {task for task in (self._reading, self._fitting) if task is not None}:
            await asyncio.wait(tasks)

    @in_thread
    def recommendations(self) -> Recommendations:
        """Return a recommendation for each role. Raises EngineError."""
        from app.library.hub.catalogue import Role, catalogue_notice, read_catalogue
        from app.library.hub.selection import recommend_each

        self._fit_cache.renew()
        context = self._fit_cache.here()
        catalogue = read_catalogue()
        found = recommend_each(catalogue.models, Role, context)
        return Recommendations(found, catalogue_notice(catalogue.dated, self._today()))

    @in_thread
    def show(self, name: str) -> ModelDescription:
        """Return the description of a model's files. Raises ModelFileError."""
        from quantizer.gguf.validation import validate_gguf

        header = validate_gguf(resolve(name, self._settings).path)
        with Index(self._settings.cache_dir) as index:
            return describe_model(header, index, self._settings.cache_dir)

    @in_thread
    def types(self, name: str) -> list[TypeChoice]:
        """Return a model's figures in each type, with verdicts. Raises UserError as planning does."""
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
        """Return the model `name` (or path). Raises ModelFileError as `resolve` does."""
        return resolve(name, self._settings)

    @in_thread
    def remove(self, ref: ModelRef, *, is_dry_run: bool) -> RemovalResult:
        """Remove `ref`, unless `is_dry_run`, and return what is deleted. Raises UsageError, StorageError."""
        removal = plan_removal(ref, self._settings.models_dir)
        if is_dry_run:
            return removal
        remove(removal, self._settings.models_dir)
        with Index(self._settings.cache_dir) as index:
            index.forget(removal.paths)
        return removal

    @in_thread
    def diagnose(self) -> MachineReport:
        """Return the machine and its problems. Raises EngineError."""
        from app.library.machine_fit.diagnostics import collect_findings, describe_machine

        return describe_machine(collect_findings(self._settings, self._fit_cache.machine()))

    @in_thread
    def _entries(self, *, has_external: bool) -> list[LibraryEntry]:
        self._fit_cache.renew()
        with Index(self._settings.cache_dir) as index:
            forget_missing(self._settings.models_dir, index)
            return list_entries((*available(self._settings), *(external_models() if has_external else ())), index)

    @in_thread
    def _read(self, entries: Sequence[LibraryEntry]) -> None:
        with Index(self._settings.cache_dir) as index:
            found = [read_entry(entry, index) for entry in self._until_closing(entries)]
        self._arriving = frozenset(entry.ref.path for entry in found if entry.is_arriving)

    @in_thread
    def _fit(self, entries: Sequence[LibraryEntry]) -> None:
        """Compute the verdicts of `entries`, which a machine that cannot be surveyed does not have."""
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
