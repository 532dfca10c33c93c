"""The library calls of the client: local models, hub search, recommendations, imports, removals, keep-alive.

Owns these calls. Independent of where models are stored.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from app.client.connection import Connection
from app.protocol.codec import decode
from app.protocol.library import (
    HubRepository,
    LocalModels,
    MachineReport,
    Recommendation,
    Recommended,
    RemovalResult,
    TypeChoice,
)

__all__ = ["LibraryClient"]

_ROOT = "/api/localllm"


class LibraryClient:
    """The service's library. Every method raises ServiceError where it is unreachable, and the errors it reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels:
        """Return the models of the service's machine, with `external` those of other programs too.

        `fresh` measures free memory again.
        """
        data = await self._get("library", external=int(external), fresh=int(fresh))
        return decode(LocalModels, data)

    async def recommend(self) -> tuple[Recommended, ...]:
        """Return a model of the catalogue for each role for which one runs."""
        data = await self._get("recommend")
        found = (decode(Recommendation, item) for item in data["recommendations"])
        return tuple(each.model for each in found if each.model)

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return the repositories of the hub whose names contain `words`; cancelling ends the search. Raises UserError
        where the hub is unreachable."""
        data = await self._get("search", words=words, limit=limit)
        return tuple(decode(HubRepository, item) for item in data["repositories"])

    async def show(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return the model info as labels and texts, not yet safe for a terminal."""
        return tuple((label, text) for label, text in (await self._get("show", model=model))["rows"])

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return size, loss and fit of a model in each type. Raises UserError for one that cannot be quantized."""
        return tuple(decode(TypeChoice, item) for item in (await self._get("types", model=model))["types"])

    async def machine(self) -> MachineReport:
        """Return the service's machine and its problems; takes some seconds."""
        return decode(MachineReport, await self._get("machine"))

    async def import_model(self, source: str, name: str = "") -> str:
        """Import a model into the library by a link, and return its id."""
        return str((await self._post("import", source=source, name=name))["id"])

    async def removal(self, model: str) -> RemovalResult:
        """Return what removing a model would delete. Raises UsageError for a model outside the library."""
        return decode(RemovalResult, await self._post("remove", model=model, dry_run=True))

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model and return what was deleted. Raises RequestError for a loaded one."""
        return decode(RemovalResult, await self._post("remove", model=model))

    async def unload(self, model: str) -> None:
        """Unload a model. Raises RequestError for a busy one."""
        await self._post("unload", model=model)

    async def keep_alive(self, model: str, duration: str) -> None:
        """Set how long an idle model stays loaded: "5m", "-1" forever."""
        await self._post("keep-alive", model=model, keep_alive=duration)

    async def _get(self, path: str, **query: str | int) -> Any:
        return await self._connection.call("GET", f"{_ROOT}/{path}?{urlencode(query)}")

    async def _post(self, path: str, **body: object) -> Any:
        return await self._connection.call("POST", f"{_ROOT}/{path}", body)
