"""The scripted library of models that tests describe: here, elsewhere and on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.protocol.library import (
    HubRepository,
    LocalModel,
    LocalModels,
    MachineReport,
    Recommendation,
    Recommendations,
    Recommended,
    RemovalResult,
    TypeChoice,
)
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UserError


class ScriptedLibrary:
    """The library that a test describes. Its calls are in `searched`, `removed`, `imported` and `keep_alives`.

    `hub_error` is raised by every search where it is set. `files` are paths that can be imported.
    """

    def __init__(self, here: Sequence[LocalModel] = (), others: Sequence[LocalModel] = ()) -> None:
        self.here = list(here)
        self.others = list(others)
        self.folder = ""
        self.recommended: tuple[Recommended, ...] = ()
        self.catalogue_notice = ""
        self.hub: tuple[HubRepository, ...] = ()
        self.hub_error: UserError | None = None
        self.type_choices: tuple[TypeChoice, ...] = ()
        self.model_info_rows: tuple[tuple[str, str], ...] = ()
        self.machine_report = MachineReport((), ())
        self.searched: list[str] = []
        self.removed: list[str] = []
        self.imported: list[str] = []
        self.files: dict[str, LocalModel] = {}
        self.keep_alives: list[tuple[str, str]] = []

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels:  # noqa: ARG002 - all is known
        """Return `here`, and with `external` `others` too."""
        return LocalModels((*self.here, *(self.others if external else ())), is_complete=True, folder=self.folder)

    async def recommend(self) -> Recommendations:
        """Return `recommended` with `catalogue_notice`."""
        found = (Recommendation(each.role, each.why, each) for each in self.recommended)
        return Recommendations(tuple(found), self.catalogue_notice)

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return the repositories of `hub` whose names have all `words`."""
        self.searched.append(words)
        if self.hub_error is not None:
            raise self.hub_error
        return tuple(repo for repo in self.hub if all(word in repo.repo.lower() for word in words.lower().split()))[
            :limit
        ]

    async def show(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return `model_info_rows`. Raises ModelFileError for an unknown model."""
        self._named(model)
        return self.model_info_rows

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return `type_choices`. Raises ModelFileError for an unknown model."""
        self._named(model)
        return self.type_choices

    async def machine(self) -> MachineReport:
        """Return `machine_report`."""
        return self.machine_report

    async def import_model(self, source: str, name: str = "") -> str:
        """Add another program's model, or one of `files`, to `here`."""
        model = self._named(source)
        self.imported.append(source)
        self.here.append(replace(model, id=name or model.id, where="library"))
        return self.here[-1].id

    async def removal(self, model: str) -> RemovalResult:
        """Return what would be removed: one file."""
        found = self._named(model)
        return RemovalResult(found.id, (found.path,), found.n_bytes)

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model."""
        going = await self.removal(model)
        self.removed.append(model)
        self.here = [found for found in self.here if model not in (found.id, found.path)]
        return going

    async def unload(self, model: str) -> None:
        """Unload a model at once."""
        found = self._named(model)
        unloaded = replace(found, state="unloaded", expires_s=None)
        self.here = [unloaded if each is found else each for each in self.here]

    async def keep_alive(self, model: str, duration: str) -> None:
        """Record the keep-alive of a model."""
        self._named(model)
        self.keep_alives.append((model, duration))

    def _named(self, name: str) -> LocalModel:
        for model in (*self.here, *self.others, *self.files.values()):
            if name in (model.id, model.path):
                return model
        raise ModelFileError(f"There is no model {name!r}.")
