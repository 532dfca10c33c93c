"""The library as faces ask the service for it: lists with verdicts, searches, cards, names given and taken.

Owns these calls and how their answers are read. Knows nothing of where models lie.
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
    """The service's library. Every method raises ServiceError when the service cannot be reached, and what it says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels:
        """Return the models of the service's machine, with `external` those of other programs too.

        `fresh` looks anew at what memory is free.
        """
        data = await self._get("library", external=int(external), fresh=int(fresh))
        return decode(LocalModels, data)

    async def recommend(self) -> tuple[Recommended, ...]:
        """Return a model of the catalogue for each role for which one runs."""
        data = await self._get("recommend")
        found = (decode(Recommendation, item) for item in data["recommendations"])
        return tuple(each.model for each in found if each.model)

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return what the hub has for `words`. Cancelling it ends the search. Raises UserError with the way out where
        the hub cannot be asked."""
        data = await self._get("search", words=words, limit=limit)
        return tuple(decode(HubRepository, item) for item in data["repositories"])

    async def card(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return what is known of a model, as labels and texts for people; not yet fit for a terminal."""
        return tuple((label, text) for label, text in (await self._get("card", model=model))["rows"])

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return what each type would make of a model. Raises UserError for one that cannot be quantized."""
        return tuple(decode(TypeChoice, item) for item in (await self._get("types", model=model))["types"])

    async def machine(self) -> MachineReport:
        """Return what the service's machine is and what is wrong with it; takes some seconds."""
        return decode(MachineReport, await self._get("machine"))

    async def import_model(self, source: str, name: str = "") -> str:
        """Take a model into the library by a link, and return the id that it has there."""
        return str((await self._post("import", source=source, name=name))["id"])

    async def removal(self, model: str) -> RemovalResult:
        """Return what removing a model would take away. Raises UsageError for what is not the library's."""
        return decode(RemovalResult, await self._post("remove", model=model, dry_run=True))

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model and return what went. Raises RequestError for one that is loaded."""
        return decode(RemovalResult, await self._post("remove", model=model))

    async def unload(self, model: str) -> None:
        """Let a model's memory go. Raises RequestError for one that is at work."""
        await self._post("unload", model=model)

    async def keep_alive(self, model: str, duration: str) -> None:
        """Say how long a loaded model stays when nobody uses it: "5m", "-1" for good."""
        await self._post("keep-alive", model=model, keep_alive=duration)

    async def _get(self, path: str, **query: str | int) -> Any:
        return await self._connection.call("GET", f"{_ROOT}/{path}?{urlencode(query)}")

    async def _post(self, path: str, **body: object) -> Any:
        return await self._connection.call("POST", f"{_ROOT}/{path}", body)
