"""Routes of models: lists with verdicts, searches, facts, import, removal, plans, loading by a plan, unloading.

The answers are the objects that the verbs of the command line print with `--json`. Errors may contain paths of this
machine: the caller gave them.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.engine.messages import EngineConfig
from app.library.local.model_record import ModelDescription
from app.protocol.errors import RequestError
from app.protocol.library import (
    HubRepository,
    LoadState,
    LocalModels,
    MachineReport,
    ModelUpdate,
    PlacementResult,
    Recommendations,
    RemovalResult,
    TypeChoice,
)
from app.protocol.plan import PlanReport, PlanRequest
from app.protocol.status import ContextLength, Evictions
from app.service.api.app_state import app_state, model_of
from app.service.api.app_state import unload as unload_idle
from app.service.api.fields import Body
from app.service.api.native.status import ModelId
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, while_connected
from app.service.models.served_model import ServedModel
from app.service.pool.memory import LoadedModel
from app.settings.parsing import parse_duration
from app.settings.settings import SETTINGS
from offload.footprint.kv_cache import parse_kv_types
from quantizer.system.errors import UsageError

router = Router(prefix="/api/localllm")

_N_MOST = 100  # repositories in one search
_N_USUAL = 10
_MAX_WORDS = 200  # characters
_LEAST_CELLS = 64  # with fewer llama.cpp 0.3.36 aborts while it sizes its buffers
_MOST_GPUS = 64

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
    repositories: list[HubRepository]


class Updates(TypedDict):
    updates: list[ModelUpdate]


class Types(TypedDict):
    types: list[TypeChoice]


@router.get("/library")
async def listing(request: Request, external: str = "", fresh: str = "") -> JsonResponse[LocalModels]:
    """The models of this machine, each with its verdict and whether it is loaded.

    `is_complete` is false while headers are still being read: then ask again.
    """
    found = await app_state(request).library.listing(has_external=_is_set(external), is_fresh=_is_set(fresh))
    models = app_state(request).models
    rows = [replace(model, **asdict(_load_state(models.serving(ref)))) for ref, model in found.models]
    return JsonResponse(LocalModels(tuple(rows), found.is_complete, found.folder, found.skipped))


@router.get("/recommend")
async def recommend(request: Request) -> JsonResponse[Recommendations]:
    """A model of the catalogue for each role, chosen for this machine without the network."""
    return JsonResponse(await app_state(request).library.recommendations())


@router.get("/search", refusals=errors(400, 502))
async def search(request: Request, words: str = "", limit: str = "") -> JsonResponse[Repositories]:
    """Models of the hub whose names have all the words, each quant with its verdict for this machine."""
    if not words.strip() or len(words) > _MAX_WORDS:
        raise RequestError("There are no words to search for.", f"Give words=, at most {_MAX_WORDS} characters.")
    n_most = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 4 else _N_USUAL

    async def find() -> Repositories:
        return {"repositories": await app_state(request).library.search(words, min(max(1, n_most), _N_MOST))}

    return await while_connected(request, find())


@router.get("/updates", refusals=errors(404, 502))
async def updates(request: Request, model: str = "") -> JsonResponse[Updates]:
    """Whether the hub has newer revisions of a model, or of all that came from it; the service never asks by itself."""

    async def find() -> Updates:
        return {"updates": await app_state(request).library.updates(model)}

    return await while_connected(request, find())


@router.get("/show", refusals=errors(400, 404))
async def show(request: Request, model: str = "") -> JsonResponse[ModelDescription]:
    """The facts of a model's files, and what was measured of it; empty is the default model."""
    return JsonResponse(await app_state(request).library.show(_name_or_default(request, model)))


@router.get("/types", refusals=errors(400, 404))
async def types(request: Request, model: str = "") -> JsonResponse[Types]:
    """Size, loss, verdict and speed of a model in each quantization type; empty is the default model."""
    return JsonResponse({"types": await app_state(request).library.types(_name_or_default(request, model))})


@router.get("/machine")
async def machine(request: Request) -> JsonResponse[MachineReport]:
    """The devices of this machine, and its problems."""
    return JsonResponse(await app_state(request).library.diagnose())


@router.post("/import", refusals=errors(404, 409))
async def import_model(request: Request, body: ImportBody) -> JsonResponse[PlacementResult]:
    """Import a model into the library, by a link unless its bytes are to be copied."""
    return JsonResponse(await app_state(request).library.place(body.source, body.name, is_copy=body.copy_bytes))


@router.post("/remove", refusals=errors(404))
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


@router.post("/unload", refusals=errors(404))
async def unload(request: Request, body: UnloadBody) -> JsonResponse[LoadState]:
    """Unload an idle model until its next use; its memory is freed with the last name that holds it."""
    model = await _serving(request, body.model)
    if model is not None:
        unload_idle(model)
    return JsonResponse(_load_state(model))


@router.post("/keep-alive", refusals=errors(404))
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
    return LoadState(model.status.state, model.ref.id, model.keep_alive.expires_s) if model else LoadState()


def _check_n_ctx(n_ctx: int) -> int:
    if 0 < n_ctx < _LEAST_CELLS:
        raise ValueError(f"must be at least {_LEAST_CELLS}, or 0 to let the planner choose")
    return n_ctx


class PlanBody(Body):
    """See `app.protocol.plan.PlanRequest`."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=0, le=SETTINGS["ctx"].most), AfterValidator(_check_n_ctx)] = 0
    kv_type: StrictStr = ""
    n_sequences: Annotated[int, Field(ge=0, le=SETTINGS["parallel"].most)] = 0
    n_threads: Annotated[int, Field(ge=0, le=SETTINGS["threads"].most)] = 0
    context_shift: bool | None = None
    gpu_layers: Annotated[dict[str, int], Field(max_length=_MOST_GPUS)] | None = None
    vram: Annotated[tuple[StrictStr, ...], Field(max_length=_MOST_GPUS)] = ()
    ram: StrictStr = ""
    is_full: bool = False
    is_fresh: bool = False

    def plan_request(self) -> PlanRequest:
        return PlanRequest(**self.model_dump())


class ContextBody(Body):
    """The context that a model should have, in tokens."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=_LEAST_CELLS, le=SETTINGS["ctx"].most)]


@router.post("/plan", refusals=errors(404, 502))
async def plan(request: Request, body: PlanBody) -> JsonResponse[PlanReport]:
    """The plan of a model before it is loaded: verdict, bytes by device, speeds, remedies."""
    wanted, models = body.plan_request(), app_state(request).models
    served = next((model for model in models.opened if wanted.model in ("", model.ref.id)), None)
    resolved = wanted if served is None else replace(wanted, model=str(served.ref.path))
    loaded = [
        LoadedModel(
            path=model.ref.path,
            worker_pid=model.engine.worker_pid,
            held_bytes={device.name: device.n_bytes - device.extras_bytes for device in known.devices if device.is_gpu},
        )
        for model in models.opened
        if model.engine.worker_pid is not None and (known := model.engine.status.plan) is not None
    ]
    report = await asyncio.to_thread(app_state(request).plan_service.plan, resolved, loaded)
    return JsonResponse(replace(report, model=served.ref.id if served else wanted.model))


@router.post("/reload", refusals=errors(404))
async def reload(request: Request, body: PlanBody) -> JsonResponse[ModelId]:
    """Load a model with new settings; /status reports the progress. Its running answers fail."""
    wanted = body.plan_request()
    if not wanted.is_here:
        raise UsageError("This plan is for another machine.", "Plan for this one, without vram and ram.")
    parse_kv_types(wanted.kv_type)
    model = await app_state(request).models.reload(wanted.model, partial(apply_plan_request, wanted))
    return JsonResponse({"id": model.ref.id})


@router.post("/context", refusals=errors(404))
async def lengthen_context(request: Request, body: ContextBody) -> JsonResponse[ContextLength]:
    """Load a model, or load it again, with a longer context before a prompt needs it.

    It has as many of the tokens as training and memory allow. Running answers end first. Returns when the model is
    loaded. A context of the user's choice stays.
    """
    model = await model_of(request, body.model)
    return await while_connected(request, model.lengthen_context(body.n_ctx))


class EvictionsBody(Body):
    """A model, and the context in tokens with which it would be loaded; 0 is the usual one."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=0, le=SETTINGS["ctx"].most), AfterValidator(_check_n_ctx)] = 0


@router.post("/evictions", refusals=errors(404))
async def evictions(request: Request, body: EvictionsBody) -> JsonResponse[Evictions]:
    """The models that would be unloaded to load another one. Loads and unloads nothing."""
    evicted = await app_state(request).models.evicted_for(body.model, body.n_ctx)
    return JsonResponse(Evictions(evicted is not None, evicted or ()))


def apply_plan_request(request: PlanRequest, config: EngineConfig) -> EngineConfig:
    """Return `config` with the values that `request` gives; without layers on GPUs the planner places them anew."""
    return replace(
        config,
        n_ctx=request.n_ctx or config.n_ctx,
        n_cells=0,
        kv_type=request.kv_type or config.kv_type,
        n_sequences=request.n_sequences or config.n_sequences,
        n_threads=request.n_threads or config.n_threads,
        context_shift=config.context_shift if request.context_shift is None else request.context_shift,
        gpu_layers=request.gpu_layers,
    )
