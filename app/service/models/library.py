"""The library as requests see it: lists, verdicts, searches, cards, names given and taken. Everything runs in threads.

Owns what is kept between requests: the machine as it was looked at, and verdicts. Knows nothing of HTTP or of engines.

Work that waits for the network, in a thread of its own: it holds up neither the event loop nor the service's end.

Owns how its result comes back, and that who stops waiting ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from app.library.external import external_models
from app.library.library_json import (
    card_json,
    entry_json,
    fit_json,
    hit_json,
    placement_json,
    recommendation_json,
    removal_json,
)
from app.library.local.index import Index, LibraryEntry, forget_missing, list_entries, read_entry
from app.library.local.model_files import ModelRef
from app.library.local.removal import plan_removal, remove
from app.library.local.resolve import available, find_importable, resolve
from app.library.machine_fit.fit_cache import FitCache
from app.settings.settings import Settings
from quantizer.errors import EngineError

__all__ = ["LibraryService", "Listing", "run_in_thread"]

_COPY = "copy"


@dataclass(frozen=True, slots=True)
class Listing:
    """Models with their objects as JSON; while not `is_complete`, more is being read of some of them."""

    models: tuple[tuple[ModelRef, dict[str, Any]], ...]
    is_complete: bool


class LibraryService:
    """The models that `settings` have here and elsewhere on the disk."""

    def __init__(self, settings: Settings, fit_cache: FitCache | None = None) -> None:
        self._settings = settings
        self._fit_cache = fit_cache or FitCache(settings)
        self._reading: asyncio.Task[None] | None = None
        self._is_closing = threading.Event()

    async def listing(self, *, has_external: bool, is_fresh: bool = False) -> Listing:
        """Return what is known at once; what is not is read in the background, and there at a later call.

        `has_external` adds what other programs hold, `is_fresh` looks at the machine anew. Raises StorageError.
        """
        if is_fresh:
            await asyncio.to_thread(self._fit_cache.forget)
        entries = await asyncio.to_thread(self._surveyed, has_external=has_external)
        unknown = [entry for entry in entries if not (entry.is_read and self._fit_cache.has(entry))]
        if unknown and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(asyncio.to_thread(self._read, unknown))
        return Listing(tuple((entry.ref, self._told(entry)) for entry in entries), not unknown)

    async def recommendations(self) -> list[dict[str, Any]]:
        """Return a recommendation for each role, as `localllm recommend --json` does. Raises EngineError."""
        return await asyncio.to_thread(self._recommended)

    async def search(self, words: str, n_most: int) -> list[dict[str, Any]]:
        """Return what the hub has for `words`, each quant with its verdict, as `localllm search --json` does.

        Who cancels it ends the search. Raises HubError where the hub cannot be asked.
        """
        return await run_in_thread(lambda: self._found(words, n_most))

    async def card(self, name: str) -> dict[str, Any]:
        """Return the object of `localllm show --json`, with its lines for people as `rows`. Raises ModelFileError."""
        return await asyncio.to_thread(self._card, name)

    async def types(self, name: str) -> list[dict[str, Any]]:
        """Return what each type would make of a model, as `localllm quantize --list --json` does, with verdicts.

        Raises UserError as planning does.
        """
        return await asyncio.to_thread(self._types, name)

    async def place(self, source: str, name: str, *, is_copy: bool) -> dict[str, Any]:
        """Take a model into the library as `localllm import` does. Raises as that does."""
        return await asyncio.to_thread(self._place, source, name, is_copy=is_copy)

    async def find(self, name: str) -> ModelRef:
        """Return what `name` means to a person at this machine. Raises ModelFileError as `resolve` does."""
        return await asyncio.to_thread(resolve, name, self._settings)

    async def removal(self, ref: ModelRef) -> dict[str, Any]:
        """Return what removing `ref` would take away. Raises UsageError for what is not the library's."""
        return removal_json(await asyncio.to_thread(plan_removal, ref, self._settings.models_dir))

    async def remove(self, ref: ModelRef) -> dict[str, Any]:
        """Remove `ref` and return what went. Raises UsageError, StorageError."""
        return await asyncio.to_thread(self._remove, ref)

    async def checkup(self) -> dict[str, Any]:
        """Return what this machine is and what is wrong with it, with its lines for people as `rows`.

        Raises EngineError where it cannot be looked at.
        """
        return await asyncio.to_thread(self._checked_up)

    async def close(self) -> None:
        """Read no more; the file that is being read is read to its end."""
        self._is_closing.set()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    # In threads

    def _surveyed(self, *, has_external: bool) -> list[LibraryEntry]:
        with Index(self._settings.cache_dir) as index:
            forget_missing(self._settings.models_dir, index)
            return list_entries((*available(self._settings), *(external_models() if has_external else ())), index)

    def _read(self, entries: Sequence[LibraryEntry]) -> None:
        """Learn what is not known of `entries`; a machine that cannot be looked at has no verdicts."""
        with Index(self._settings.cache_dir) as index:
            found = [entry if entry.is_read else read_entry(entry, index) for entry in self._until_closing(entries)]
        with contextlib.suppress(EngineError):
            for entry in self._until_closing(found):
                if not self._fit_cache.has(entry):
                    self._fit_cache.compute(entry)

    def _until_closing(self, entries: Sequence[LibraryEntry]) -> Iterator[LibraryEntry]:
        for entry in entries:
            if self._is_closing.is_set():
                return
            yield entry

    def _told(self, entry: LibraryEntry) -> dict[str, Any]:
        fit = self._fit_cache.get(entry)
        return entry_json(entry) | {"fit": fit_json(fit) if fit else None}

    def _checked_up(self) -> dict[str, Any]:
        from app.diagnostics import diagnostics_report

        return diagnostics_report(self._settings, self._fit_cache.machine())

    def _recommended(self) -> list[dict[str, Any]]:
        from app.library.hub.catalogue import Role, read_catalogue
        from app.library.hub.recommend import recommend

        here = self._fit_cache.here()
        return [recommendation_json(recommend(read_catalogue(), role, here)) for role in Role]

    async def _found(self, words: str, n_most: int) -> list[dict[str, Any]]:
        """Runs in a loop that nothing else runs in."""
        from app.library.hub.access import hub_access_from_environment
        from app.library.hub.repo_list import list_repos
        from app.library.hub.search import inspect_repos

        access, here = hub_access_from_environment(), self._fit_cache.here()
        listed = list_repos(access, words, n_most)
        return [hit_json(hit) for hit in await inspect_repos(listed, access, here, lambda: None)]

    def _card(self, name: str) -> dict[str, Any]:
        from app.library.local.index import full_model_info
        from app.library.local.model_record import model_info_rows, record_of
        from quantizer.gguf.validation import validate_gguf

        header = validate_gguf(resolve(name, self._settings).path)
        card = full_model_info(header)
        with Index(self._settings.cache_dir) as index:
            record = record_of(header, index, self._settings.cache_dir)
        return card_json(card, record) | {"rows": model_info_rows(card, record)}

    def _types(self, name: str) -> list[dict[str, Any]]:
        from app.library.machine_fit.type_table import fitted_type_rows, quantize_source

        here, source = self._fit_cache.here(), quantize_source(resolve(name, self._settings))
        return fitted_type_rows(source, here.machine.host.bytes_per_s or 0.0, here.fit)

    def _place(self, source: str, name: str, *, is_copy: bool) -> dict[str, Any]:
        from app.library.local.placement import copy_model, link_model, plan_import

        placement = plan_import(find_importable(source, self._settings), name, self._settings.models_dir)
        with Index(self._settings.cache_dir) as index:
            if is_copy:
                copy_model(placement, index, lambda _n_bytes: None)
            way = _COPY if is_copy else link_model(placement, index)
        return placement_json(resolve(str(placement.path), self._settings), placement, way)

    def _remove(self, ref: ModelRef) -> dict[str, Any]:
        removal = plan_removal(ref, self._settings.models_dir)
        remove(removal)
        with Index(self._settings.cache_dir) as index:
            index.forget(removal.paths)
        return removal_json(removal)


Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` in an event loop of its own, which it may block; return or raise what it does.

    Cancelling this cancels that at its next pause. A thread that hangs is left behind when the process ends.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def noted() -> Result:
        task = asyncio.current_task()
        assert task is not None
        tasks.append((asyncio.get_running_loop(), task))
        if result.cancelled():
            raise asyncio.CancelledError
        return await work()

    def run() -> None:
        try:
            _tell(loop, result, asyncio.run(noted()), None)
        except BaseException as error:
            _tell(loop, result, None, error)

    threading.Thread(target=run, name="run_in_thread", daemon=True).start()
    try:
        return await result
    finally:
        for own, task in tasks:
            with contextlib.suppress(RuntimeError):  # it has ended
                own.call_soon_threadsafe(task.cancel)


def _tell(
    loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the service has ended first
        loop.call_soon_threadsafe(settle)
