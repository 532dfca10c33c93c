"""The library as requests see it: lists, verdicts, searches, cards, names given and taken. Everything runs in threads.

Owns what is kept between requests: the machine as it was looked at, and verdicts. Knows nothing of HTTP or of engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.library.elsewhere import elsewhere
from app.library.fit_shelf import FitShelf
from app.library.importing import importable
from app.library.index import Index
from app.library.library_json import (
    card_json,
    entry_json,
    fit_json,
    hit_json,
    placement_json,
    recommendation_json,
    removal_json,
)
from app.library.listing import Entry, forget_vanished, read, survey
from app.library.model_ref import ModelRef
from app.library.removal import plan_removal, remove
from app.library.resolve import available, resolve
from app.service.side_thread import beside
from app.settings import Settings
from quantizer.errors import EngineError

__all__ = ["Listing", "ServedLibrary"]

_COPY = "copy"


@dataclass(frozen=True, slots=True)
class Listing:
    """Models with their objects as JSON; while not `is_complete`, more is being read of some of them."""

    models: tuple[tuple[ModelRef, dict[str, Any]], ...]
    is_complete: bool


class ServedLibrary:
    """The models that `settings` have here and elsewhere on the disk."""

    def __init__(self, settings: Settings, shelf: FitShelf | None = None) -> None:
        self._settings = settings
        self._shelf = shelf or FitShelf(settings)
        self._reading: asyncio.Task[None] | None = None
        self._is_closing = threading.Event()

    async def listing(self, *, is_wide: bool, is_fresh: bool = False) -> Listing:
        """Return what is known at once; what is not is read in the background, and there at a later call.

        `is_wide` adds what other programs hold, `is_fresh` looks at the machine anew. Raises StorageError.
        """
        if is_fresh:
            await asyncio.to_thread(self._shelf.forget)
        entries = await asyncio.to_thread(self._surveyed, is_wide=is_wide)
        unknown = [entry for entry in entries if not (entry.is_read and self._shelf.is_known(entry))]
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
        return await beside(lambda: self._found(words, n_most))

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

    def _surveyed(self, *, is_wide: bool) -> list[Entry]:
        with Index(self._settings.cache_dir) as index:
            forget_vanished(self._settings.models_dir, index)
            return survey((*available(self._settings), *(elsewhere() if is_wide else ())), index)

    def _read(self, entries: Sequence[Entry]) -> None:
        """Learn what is not known of `entries`; a machine that cannot be looked at has no verdicts."""
        with Index(self._settings.cache_dir) as index:
            found = [entry if entry.is_read else read(entry, index) for entry in self._until_closing(entries)]
        with contextlib.suppress(EngineError):
            for entry in self._until_closing(found):
                if not self._shelf.is_known(entry):
                    self._shelf.learn(entry)

    def _until_closing(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if self._is_closing.is_set():
                return
            yield entry

    def _told(self, entry: Entry) -> dict[str, Any]:
        fit = self._shelf.known(entry)
        return entry_json(entry) | {"fit": fit_json(fit) if fit else None}

    def _checked_up(self) -> dict[str, Any]:
        from app.checkup import told_checkup

        return told_checkup(self._settings, self._shelf.machine())

    def _recommended(self) -> list[dict[str, Any]]:
        from app.library.catalogue import Role, read_catalogue
        from app.library.recommend import recommend

        here = self._shelf.here()
        return [recommendation_json(recommend(read_catalogue(), role, here)) for role in Role]

    async def _found(self, words: str, n_most: int) -> list[dict[str, Any]]:
        """Runs in a loop that nothing else runs in."""
        from app.library.hub_access import access_here
        from app.library.hub_list import list_repos
        from app.library.search import look_at

        access, here = access_here(), self._shelf.here()
        listed = list_repos(access, words, n_most)
        return [hit_json(hit) for hit in await look_at(listed, access, here, lambda: None)]

    def _card(self, name: str) -> dict[str, Any]:
        from app.library.card_rows import card_rows
        from app.library.facts import whole_card
        from app.library.record import record_of
        from quantizer.gate import admit

        header = admit(resolve(name, self._settings).path)
        card = whole_card(header)
        with Index(self._settings.cache_dir) as index:
            record = record_of(header, index, self._settings.cache_dir)
        return card_json(card, record) | {"rows": card_rows(card, record)}

    def _types(self, name: str) -> list[dict[str, Any]]:
        from app.library.type_rows import fitted_type_rows, quantizable

        here, source = self._shelf.here(), quantizable(resolve(name, self._settings))
        return fitted_type_rows(source, here.machine.host.bytes_per_s or 0.0, here.fit)

    def _place(self, source: str, name: str, *, is_copy: bool) -> dict[str, Any]:
        from app.library.placement import copy, link_all, plan_placement

        placement = plan_placement(importable(source, self._settings), name, self._settings.models_dir)
        with Index(self._settings.cache_dir) as index:
            if is_copy:
                copy(placement, index, lambda _n_bytes: None)
            way = _COPY if is_copy else link_all(placement, index)
        return placement_json(resolve(str(placement.path), self._settings), placement, way)

    def _remove(self, ref: ModelRef) -> dict[str, Any]:
        removal = plan_removal(ref, self._settings.models_dir)
        remove(removal)
        with Index(self._settings.cache_dir) as index:
            index.forget(removal.paths)
        return removal_json(removal)
