"""The library as faces ask the service for it: lists with verdicts, searches, cards, names given and taken.

Owns these calls and how their answers are read. Knows nothing of where models lie.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from app.client.connection import Connection
from app.protocol.library import (
    HubModel,
    HubRepository,
    LocalModel,
    LocalModels,
    MachineProblem,
    MachineReport,
    ModelFit,
    Quant,
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
        return LocalModels(tuple(_here(item) for item in data["models"]), data["complete"])

    async def recommend(self) -> tuple[Recommended, ...]:
        """Return a model of the catalogue for each role for which one runs."""
        data = await self._get("recommend")
        return tuple(_recommended(item) for item in data["recommendations"] if item["model"])

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return what the hub has for `words`. Cancelling it ends the search. Raises UserError with the way out where
        the hub cannot be asked."""
        data = await self._get("search", words=words, limit=limit)
        return tuple(_repo(item) for item in data["repositories"])

    async def card(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return what is known of a model, as labels and texts for people; not yet fit for a terminal."""
        return tuple((label, text) for label, text in (await self._get("card", model=model))["rows"])

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return what each type would make of a model. Raises UserError for one that cannot be quantized."""
        return tuple(_type(item) for item in (await self._get("types", model=model))["types"])

    async def machine(self) -> MachineReport:
        """Return what the service's machine is and what is wrong with it; takes some seconds."""
        data = await self._get("machine")
        problems = tuple(MachineProblem(item["what"], item["next_step"]) for item in data["problems"])
        return MachineReport(tuple((label, text) for label, text in data["rows"]), problems)

    async def import_model(self, source: str, name: str = "") -> str:
        """Take a model into the library by a link, and return the id that it has there."""
        return str((await self._post("import", source=source, name=name))["id"])

    async def removal(self, model: str) -> RemovalResult:
        """Return what removing a model would take away. Raises UsageError for what is not the library's."""
        return _removed(await self._post("remove", model=model, dry_run=True))

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model and return what went. Raises RequestError for one that is loaded."""
        return _removed(await self._post("remove", model=model))

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


def _here(item: dict[str, Any]) -> LocalModel:
    return LocalModel(
        id=item["id"],
        where=item["where"],
        path=item["path"],
        n_bytes=item["bytes"],
        damaged=item["damaged"] or "",
        file_type=item["file_type"] or "",
        n_parameters=item["n_parameters"] or 0,
        n_ctx_train=item["n_ctx_train"] or 0,
        fit=_fit(item["fit"]) if item["fit"] else None,
        state=item["state"],
        loaded_as=item["loaded_as"] or "",
        expires_s=item["expires_s"],
    )


def _fit(item: dict[str, Any]) -> ModelFit:
    return ModelFit(item["verdict"], item["decode_tps"], item["total_bytes"])


def _recommended(item: dict[str, Any]) -> Recommended:
    model = item["model"]
    return Recommended(
        role=item["role"],
        why=item["why"],
        keeps_pace=item["keeps_pace"],
        title=model["title"],
        reference=model["ref"],
        licence=model["licence"],
        n_parameters=model["n_parameters"],
        n_ctx_train=model["n_ctx_train"],
        quant=Quant(model["quant"], model["n_bytes"], _fit(model)),
    )


def _repo(item: dict[str, Any]) -> HubRepository:
    return HubRepository(
        repo=item["repo"],
        is_checkpoint=item["kind"] == "checkpoint",
        n_downloads=item["downloads"],
        licence=item["licence"] or "",
        is_gated=item["gated"],
        models=tuple(_found(model) for model in item["models"]),
        n_left_out=item["models_left_out"],
        problem=item["problem"] or "",
    )


def _found(item: dict[str, Any]) -> HubModel:
    quants = tuple(Quant(quant["quant"], quant["n_bytes"], _fit(quant)) for quant in item["quants"])
    return HubModel(item["architecture"], item["n_parameters"], item["n_ctx_train"] or 0, quants)


def _type(item: dict[str, Any]) -> TypeChoice:
    return TypeChoice(
        quant=Quant(item["type"], item["bytes"], _fit(item)),
        bits_per_weight=item["bits_per_weight"],
        perplexity_loss=item["perplexity_loss"],
        needs_imatrix=item["needs_imatrix"],
        description=item["description"],
    )


def _removed(item: dict[str, Any]) -> RemovalResult:
    return RemovalResult(item["id"], tuple(item["paths"]), item["bytes_freed"])
