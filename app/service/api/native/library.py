"""Routes of the library: lists with verdicts, searches, facts of a model, import, removal, unloading.

The answers are the objects that the verbs of the command line print with `--json`. Errors may contain paths of this
machine: the caller gave them.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Request
from pydantic import Field, StrictStr
from typing_extensions import TypedDict

from app.library.local.model_record import ModelDescription
from app.protocol.errors import RequestError
from app.protocol.library import (
    HubRepository,
    LoadState,
    LocalModels,
    MachineReport,
    PlacementResult,
    Recommendations,
    RemovalResult,
    TypeChoice,
)
from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, while_connected
from app.service.models.served_model import ServedModel
from app.settings.parsing import parse_duration

router = Router(prefix="/api/localllm")

_N_MOST = 100  # repositories in one search
_N_USUAL = 10
_MAX_WORDS = 200  # characters

Name = Annotated[StrictStr, Field(min_length=1)]


class ImportBody(Body):
    """`source` is a path or the name of another program's model, `name` its new name."""

    source: Name
    name: StrictStr = ""
    copy_bytes: Annotated[bool, Field(alias="copy")] = False


class RemoveBody(Body):
    """`dry_run` returns what would be removed, and removes nothing."""

    model: Name
    dry_run: bool = False


class UnloadBody(Body):
    """`model` is a name; empty is the default model."""

    model: StrictStr = ""


class KeepAliveBody(Body):
    """`keep_alive` is a duration as in Ollama's dialect; negative is forever, 0 unloads at once."""

    model: StrictStr = ""
    keep_alive: StrictStr | int | float


class Repositories(TypedDict):
    """Repositories of the hub."""

    repositories: list[HubRepository]


class Types(TypedDict):
    """Every type that the model could be quantized to."""

    types: list[TypeChoice]


@router.get("/library")
async def listing(request: Request, external: str = "", fresh: str = "") -> JsonResponse[LocalModels]:
    """The models of this machine, each with its verdict and whether it is loaded.

    `is_complete` is false while headers are still being read: then ask again.
    """
    found = await app_state(request).library.listing(has_external=_is_set(external), is_fresh=_is_set(fresh))
    models = app_state(request).models
    rows = [replace(model, **asdict(_load_state(models.serving(ref)))) for ref, model in found.models]
    return JsonResponse(LocalModels(tuple(rows), found.is_complete, found.folder))


@router.get("/recommend")
async def recommend(request: Request) -> JsonResponse[Recommendations]:
    """A model of the catalogue for each role, chosen for this machine without the network."""
    return JsonResponse(await app_state(request).library.recommendations())


@router.get("/search", openapi_extra=errors(400, 502))
async def search(request: Request, words: str = "", limit: str = "") -> JsonResponse[Repositories]:
    """Models of the hub whose names have all the words, each quant with its verdict for this machine."""
    if not words.strip() or len(words) > _MAX_WORDS:
        raise RequestError("There are no words to search for.", f"Give words=, at most {_MAX_WORDS} characters.")
    n_most = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 4 else _N_USUAL

    async def find() -> JsonResponse[Repositories]:
        return JsonResponse(
            {"repositories": await app_state(request).library.search(words, min(max(1, n_most), _N_MOST))}
        )

    return await while_connected(request, find())


@router.get("/show", openapi_extra=errors(400, 404))
async def show(request: Request, model: str = "") -> JsonResponse[ModelDescription]:
    """The facts of a model's files, and what was measured of it; empty is the default model."""
    return JsonResponse(await app_state(request).library.show(_name_or_default(request, model)))


@router.get("/types", openapi_extra=errors(400, 404))
async def types(request: Request, model: str = "") -> JsonResponse[Types]:
    """Size, loss, verdict and speed of a model in each quantization type; empty is the default model."""
    return JsonResponse({"types": await app_state(request).library.types(_name_or_default(request, model))})


@router.get("/machine")
async def machine(request: Request) -> JsonResponse[MachineReport]:
    """The devices of this machine, and its problems."""
    return JsonResponse(await app_state(request).library.diagnose())


@router.post("/import", openapi_extra=errors(404, 409))
async def import_model(request: Request, body: ImportBody) -> JsonResponse[PlacementResult]:
    """Import a model into the library, by a link unless its bytes are to be copied."""
    return JsonResponse(await app_state(request).library.place(body.source, body.name, is_copy=body.copy_bytes))


@router.post("/remove", openapi_extra=errors(404))
async def remove(request: Request, body: RemoveBody) -> JsonResponse[RemovalResult]:
    """Remove a model from the library, unless it is loaded; only names in the models folder are removed."""
    library = app_state(request).library
    ref = await library.find(body.model)
    if not body.dry_run:
        models = app_state(request).models
        model = models.serving(ref)
        if model is not None and model.is_loaded:
            raise RequestError(f"{ref.id} is loaded.", "Unload it first.")
        if model is not models.default:  # which stays, and then reports that its file is missing
            await models.release(ref)
    removed = await library.remove(ref, is_dry_run=body.dry_run)
    return JsonResponse(replace(removed, dry_run=body.dry_run))


@router.post("/unload", openapi_extra=errors(404))
async def unload(request: Request, body: UnloadBody) -> JsonResponse[LoadState]:
    """Unload an idle model until its next use; its memory is freed with the last name that holds it."""
    model = await _serving(request, body.model)
    if model is not None:
        if model.is_busy:
            raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
        model.keep_alive.release()
    return JsonResponse(_load_state(model))


@router.post("/keep-alive", openapi_extra=errors(404))
async def keep_alive(request: Request, body: KeepAliveBody) -> JsonResponse[LoadState]:
    """Set for how long an idle model stays loaded."""
    idle_s = parse_duration(body.keep_alive)
    model = await _serving(request, body.model)
    if model is None:
        raise RequestError(f"{body.model} is not loaded.", "Load it first.")
    model.keep_alive.set_idle_limit(idle_s)
    model.keep_alive.restart_timer()
    return JsonResponse(_load_state(model))


def _is_set(flag: str) -> bool:
    return flag.lower() in ("1", "true", "yes")


def _name_or_default(request: Request, model: str) -> str:
    return model or str(app_state(request).models.default.ref.path)


async def _serving(request: Request, name: str) -> ServedModel | None:
    """Return the loaded model called `name`, None for a local one that is not loaded. Raises UnknownModelError."""
    models = app_state(request).models
    if not name:
        return models.default
    loaded = next((model for model in models.opened if model.ref.id == name), None)
    return loaded or models.serving(await app_state(request).library.find(name))


def _load_state(model: ServedModel | None) -> LoadState:
    """Return the state of a model's engine, "unloaded" for none, and when it is unloaded (seconds since 1970)."""
    if model is None:
        return LoadState()
    return LoadState(model.status.state, model.ref.id, model.keep_alive.expires_s)
