"""The library over HTTP, for the faces through `app.client`: lists with verdicts, searches, cards, names given and
taken, models let go.

What is answered is what the verbs of the command line print with `--json`, by the same encoders. Errors may name paths
of this machine: the caller named them.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, StrictStr

from app.library.local.model_files import ModelRef
from app.service.api.app_state import library_of, models_of
from app.service.api.fields import Body
from app.service.api.native import library_schemas as objects
from app.service.http.body import read_body
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse, while_connected
from app.service.models.served_model import ServedModel
from app.settings.parsing import parse_duration
from quantizer.errors import RequestError

__all__ = ["router"]

router = APIRouter(prefix="/api/localllm")

_N_MOST = 100  # repositories in one search
_N_USUAL = 10
_MAX_WORDS = 200  # characters

Name = Annotated[StrictStr, Field(min_length=1)]


class ImportBody(Body):
    """`source` is a path or a name of another program's model, `name` what it is to be called here."""

    source: Name
    name: StrictStr = ""
    copy_bytes: Annotated[bool, Field(alias="copy")] = False


class RemoveBody(Body):
    """`dry_run` says what would go, and removes nothing."""

    model: Name
    dry_run: bool = False


class UnloadBody(Body):
    """`model` is a name; empty is the default model."""

    model: StrictStr = ""


class KeepAliveBody(Body):
    """`keep_alive` is a duration as Ollama takes it; negative keeps the model, 0 lets it go now."""

    model: StrictStr = ""
    keep_alive: StrictStr | int | float


@router.get("/library", openapi_extra=gives(objects.Listing))
async def listing(request: Request, external: str = "", fresh: str = "") -> Response:
    """The models of this machine with what each comes to here and whether it is loaded.

    `complete` is false while headers are still being read: then ask again.
    """
    found = await library_of(request).listing(has_external=_is_set(external), is_fresh=_is_set(fresh))
    models = models_of(request)
    rows = [told | _loaded(models.serving(ref)) for ref, told in found.models]
    return JsonResponse({"models": rows, "complete": found.is_complete})


@router.get("/recommend", openapi_extra=gives(objects.Recommendations))
async def recommend(request: Request) -> Response:
    """A model of the catalogue for each role, chosen for this machine; nobody is asked."""
    return JsonResponse({"recommendations": await library_of(request).recommendations()})


@router.get("/search", openapi_extra=gives(objects.Repositories) | refuses(400, 502))
async def search(request: Request, words: str = "", limit: str = "") -> Response:
    """Models of the hub whose names have all the words, each quant with what it would come to here."""
    if not words.strip() or len(words) > _MAX_WORDS:
        raise RequestError("There are no words to search for.", f"Give words=, at most {_MAX_WORDS} characters.")
    n_most = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 4 else _N_USUAL

    async def found() -> Response:
        return JsonResponse({"repositories": await library_of(request).search(words, min(max(1, n_most), _N_MOST))})

    return await while_connected(request, found())


@router.get("/card", openapi_extra=gives(objects.Card) | refuses(400, 404))
async def card(request: Request, model: str = "") -> Response:
    """What a model's file says of it and what this machine has learnt; empty is the default model."""
    return JsonResponse(await library_of(request).card(_named(request, model)))


@router.get("/types", openapi_extra=gives(objects.Types) | refuses(400, 404))
async def types(request: Request, model: str = "") -> Response:
    """What each type would make of a model: size, loss, verdict and speed; empty is the default model."""
    return JsonResponse({"types": await library_of(request).types(_named(request, model))})


@router.get("/machine", openapi_extra=gives(objects.Machine))
async def machine(request: Request) -> Response:
    """What this machine is for running models, and what is wrong with it."""
    return JsonResponse(await library_of(request).checkup())


@router.post("/import", openapi_extra=takes(ImportBody) | gives(objects.Placed) | refuses(404, 409))
async def import_model(request: Request) -> Response:
    """Take a model into the library, by a link unless its bytes are to be copied."""
    body = await read_body(request, ImportBody)
    return JsonResponse(await library_of(request).place(body.source, body.name, is_copy=body.copy_bytes))


@router.post("/remove", openapi_extra=takes(RemoveBody) | gives(objects.Removed) | refuses(404))
async def remove(request: Request) -> Response:
    """Remove a model from the library, unless it is loaded; only names in the models folder go."""
    body, library = await read_body(request, RemoveBody), library_of(request)
    ref = await library.find(body.model)
    if body.dry_run:
        return JsonResponse(await library.removal(ref) | {"dry_run": True})
    await _let_go(request, ref)
    return JsonResponse(await library.remove(ref) | {"dry_run": False})


@router.post("/unload", openapi_extra=takes(UnloadBody) | gives(objects.LoadedAs) | refuses(404))
async def unload(request: Request) -> Response:
    """Let a model go unless it is at work; its memory goes with the last name that holds it, until the next use."""
    body = await read_body(request, UnloadBody)
    model = await _serving(request, body.model)
    if model is not None:
        if model.is_busy:
            raise RequestError(f"{model.ref.id} is at work.", "Stop its answers, or wait for them.")
        model.keep_alive.release()
    return JsonResponse(_loaded(model))


@router.post("/keep-alive", openapi_extra=takes(KeepAliveBody) | gives(objects.LoadedAs) | refuses(404))
async def keep_alive(request: Request) -> Response:
    """Say for how long a loaded model stays when nobody uses it."""
    body = await read_body(request, KeepAliveBody)
    idle_s = parse_duration(body.keep_alive)
    model = await _serving(request, body.model)
    if model is None:
        raise RequestError(f"{body.model} is not loaded.", "Load it first.")
    model.keep_alive.set_idle_limit(idle_s)
    model.keep_alive.restart_timer()
    return JsonResponse(_loaded(model))


def _is_set(flag: str) -> bool:
    return flag.lower() in ("1", "true", "yes")


def _named(request: Request, model: str) -> str:
    return model or str(models_of(request).default.ref.path)


async def _serving(request: Request, name: str) -> ServedModel | None:
    """The loaded model called `name`, None for one that is here and not loaded. Raises UnknownModelError."""
    models = models_of(request)
    if not name:
        return models.default
    known = next((model for model in models.loaded if model.ref.id == name), None)
    return known or models.serving(await library_of(request).find(name))


def _loaded(model: ServedModel | None) -> dict[str, Any]:
    """What a model's engine is at, "unloaded" for one without, and when it is let go (seconds since 1970)."""
    if model is None:
        return {"state": "unloaded", "loaded_as": None, "expires_s": None}
    return {
        "state": model.status.state,
        "loaded_as": model.ref.id,
        "expires_s": model.keep_alive.expires_s,
    }


async def _let_go(request: Request, ref: ModelRef) -> None:
    """Let nobody use the model of `ref` any more. Raises RequestError for one that is loaded."""
    models = models_of(request)
    model = models.serving(ref)
    if model is not None and model.is_loaded:
        raise RequestError(f"{ref.id} is loaded.", "Unload it first.")
    if model is not models.default:  # which is asked for without a name, and then says that its file is gone
        await models.release(ref)
