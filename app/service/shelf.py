"""The models of this machine that a request may name, whether they are loaded or not, and what their files say.

Owns names and facts. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.library.resolve import ModelRef, available, named, resolve
from app.service.file_facts import FactsShelf, FileFacts
from app.settings import Settings
from quantizer.errors import ModelFileError

__all__ = ["Shelf", "as_served"]


def as_served(ref: ModelRef) -> ModelRef:
    """Return `ref` with the id that clients of the service use."""
    return replace(ref, id=ref.served_as or ref.id)


class Shelf:
    """What `settings` have in their models folder, behind those that `loaded` gives: they may lie anywhere."""

    def __init__(self, settings: Settings, loaded: Callable[[], Sequence[ModelRef]]) -> None:
        self._settings = settings
        self._loaded = loaded
        self._facts = FactsShelf()

    async def here(self) -> tuple[ModelRef, ...]:
        """Return every model that a request may name: the loaded ones first, then the installed ones."""
        loaded = self._loaded()
        paths = {ref.path for ref in loaded}
        installed = await asyncio.to_thread(available, self._settings)
        return (*loaded, *(as_served(ref) for ref in installed if ref.path not in paths))

    async def find(self, name: str) -> ModelRef:
        """Return the model that a client calls `name`. Raises UnknownModelError that lists what is here."""
        return named(name, await self.here())

    async def resolve(self, name: str) -> ModelRef:
        """Return what `name` means to a person at this machine, paths too. Raises ModelFileError as `resolve` does."""
        return as_served(await asyncio.to_thread(resolve, name, self._settings))

    async def described(self) -> list[tuple[ModelRef, FileFacts]]:
        """Return every model that a request may name, with its facts; files that the gate refuses are none."""
        return await self.with_facts(await self.here())

    async def with_facts(self, refs: Sequence[ModelRef]) -> list[tuple[ModelRef, FileFacts]]:
        """Return those of `refs` whose files the gate lets through, with their facts; files may have gone meanwhile."""
        found = await asyncio.gather(*(self._facts_or_none(ref) for ref in refs))
        return [(ref, facts) for ref, facts in zip(refs, found, strict=True) if facts]

    async def facts(self, ref: ModelRef) -> FileFacts:
        """Return what the file of `ref` says of itself. Raises ModelFileError when the gate does not let it through."""
        return await self._facts.of(ref.path)

    async def _facts_or_none(self, ref: ModelRef) -> FileFacts | None:
        with contextlib.suppress(ModelFileError):
            return await self.facts(ref)
        return None
