"""A scripted stand-in for `app.client.library.LibraryClient`: same calls, no service, no disk, no hub.

Owns what a test says there is. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.client.model_values import Checkup, FoundRepo, HereModel, Recommended, Removed, Shelf, TypeChoice
from quantizer.errors import ModelFileError, UserError

__all__ = ["ScriptedLibrary"]


class ScriptedLibrary:
    """The library that a test describes. What it was asked for is in `searched`, `removed`, `taken_in` and `kept`.

    `hub_error` is raised by every search where it is set.
    """

    def __init__(self, here: Sequence[HereModel] = (), others: Sequence[HereModel] = ()) -> None:
        self.here = list(here)
        self.others = list(others)
        self.recommended: tuple[Recommended, ...] = ()
        self.hub: tuple[FoundRepo, ...] = ()
        self.hub_error: UserError | None = None
        self.type_choices: tuple[TypeChoice, ...] = ()
        self.card_rows: tuple[tuple[str, str], ...] = ()
        self.checkup = Checkup((), ())
        self.searched: list[str] = []
        self.removed: list[str] = []
        self.taken_in: list[str] = []
        self.kept: list[tuple[str, str]] = []

    async def models(self, *, elsewhere: bool = False, fresh: bool = False) -> Shelf:  # noqa: ARG002 - all is known
        """Return what is here, and with `elsewhere` the others."""
        return Shelf((*self.here, *(self.others if elsewhere else ())), is_complete=True)

    async def recommend(self) -> tuple[Recommended, ...]:
        """Return `recommended`."""
        return self.recommended

    async def search(self, words: str, limit: int = 10) -> tuple[FoundRepo, ...]:
        """Return the repositories of `hub` whose names have all `words`."""
        self.searched.append(words)
        if self.hub_error is not None:
            raise self.hub_error
        return tuple(repo for repo in self.hub if all(word in repo.repo.lower() for word in words.lower().split()))[
            :limit
        ]

    async def card(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return `card_rows`. Raises ModelFileError for a model that is not there."""
        self._named(model)
        return self.card_rows

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return `type_choices`. Raises ModelFileError for a model that is not there."""
        self._named(model)
        return self.type_choices

    async def machine(self) -> Checkup:
        """Return `checkup`."""
        return self.checkup

    async def take_in(self, source: str, name: str = "") -> str:
        """Put another program's model beside those that are here."""
        model = self._named(source)
        self.taken_in.append(source)
        self.here.append(replace(model, id=name or model.id, where="library"))
        return self.here[-1].id

    async def removal(self, model: str) -> Removed:
        """Return what would go: one file."""
        found = self._named(model)
        return Removed(found.id, (found.path,), found.n_bytes)

    async def remove(self, model: str) -> Removed:
        """Take a model away."""
        going = await self.removal(model)
        self.removed.append(model)
        self.here = [found for found in self.here if model not in (found.id, found.path)]
        return going

    async def unload(self, model: str) -> None:
        """Let a model be unloaded at once."""
        self._set(model, state="unloaded", expires_s=None)

    async def keep_alive(self, model: str, duration: str) -> None:
        """Note for how long a model is to stay."""
        self._named(model)
        self.kept.append((model, duration))

    def _named(self, name: str) -> HereModel:
        for model in (*self.here, *self.others):
            if name in (model.id, model.path):
                return model
        raise ModelFileError(f"There is no model {name!r}.")

    def _set(self, name: str, **changes: object) -> None:
        found = self._named(name)
        self.here = [replace(model, **changes) if model is found else model for model in self.here]  # type: ignore[arg-type]
