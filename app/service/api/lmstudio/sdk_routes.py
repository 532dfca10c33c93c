"""The websockets of LM Studio's SDK, one for each of its namespaces, and the functions of the small namespaces.

`system`, `repository` and `files` are here: what is on this machine and on the hub. A download is a job of the service,
which ends with the client that asked for it. What belongs to LM Studio's app alone (plugins, artifacts, its account)
is not here, and calling it says so.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictInt, StrictStr
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from typing_extensions import TypedDict

from app import __version__
from app.common.keys import KeyScope
from app.common.media_formats import MediaKind, format_of
from app.library.local.model_files import ModelRef
from app.library.local.resolve import UnknownModelError
from app.options.jobs import PullOptions
from app.protocol.errors import RequestError, ServiceError
from app.protocol.library import VerdictName
from app.service.api.fields import Body
from app.service.api.lmstudio.model_routes import domain_of, model_info
from app.service.api.lmstudio.sdk_models import MODEL_ENDPOINTS
from app.service.api.lmstudio.sdk_session import (
    Answer,
    Channel,
    Context,
    Endpoint,
    Namespace,
    NoParameter,
    no_model_with_path,
    serve_namespace,
)
from app.service.api.lmstudio.sdk_text import EMBEDDING_ENDPOINTS, LLM_ENDPOINTS
from app.service.generation.media import Medium
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse

Fit: TypeAlias = Literal["fullGPUOffload", "partialGPUOffload", "willNotFit"]

_N_USUAL, _N_MOST = 10, 25  # the latter is LM Studio's own limit
_MAX_WORDS = 200  # characters
_FITS: dict[VerdictName, Fit] = {
    "fits": "fullGPUOffload",  # or the memory is all there is
    "tight": "fullGPUOffload",
    "partial": "partialGPUOffload",
    "wont_run": "willNotFit",
}


class _SearchOptions(Body):
    searchTerm: Annotated[StrictStr, Field(max_length=_MAX_WORDS)] = ""  # noqa: N815
    limit: Annotated[StrictInt, Field(ge=1, le=_N_MOST)] = _N_USUAL
    compatibilityTypes: list[StrictStr] | None = None  # noqa: N815


class _SearchBody(Body):
    opts: _SearchOptions = _SearchOptions()


class _Identifier(Body):
    type: Literal["catalog", "hf"]
    identifier: Annotated[StrictStr, Field(max_length=_MAX_WORDS)]


class _OptionsBody(Body):
    modelSearchResultIdentifier: _Identifier  # noqa: N815


class _DownloadBody(Body):
    downloadIdentifier: Annotated[StrictStr, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]+$")]  # noqa: N815


class _VariantsBody(Body):
    modelKey: StrictStr  # noqa: N815


class _NotifyBody(Body):
    title: StrictStr = ""
    description: StrictStr = ""


class _UploadBody(Body):
    name: StrictStr
    contentBase64: StrictStr  # noqa: N815


async def _list_downloaded(context: Context, _: NoParameter) -> list[Any]:
    models = context.state.models
    described = await models.catalog.list_with_facts()
    return [model_info(ref, facts, domain_of(facts), models.senses(ref, facts)) for ref, facts in described]


async def _list_variants(context: Context, body: _VariantsBody) -> list[Any]:
    models = context.state.models
    try:
        ref = await models.find(body.modelKey)
    except UnknownModelError as error:
        present = [other.id for other in await models.catalog.list_models()]
        raise no_model_with_path(body.modelKey, error, present) from error
    facts = await models.catalog.facts(ref)
    # each quantization is a separate model here
    return [model_info(ref, facts, domain_of(facts), models.senses(ref, facts))]


def _constant(value: object) -> Answer:
    async def answer(_context: Context, _: NoParameter) -> object:
        return value

    return answer


async def _alive(_context: Context, _: NoParameter, _channel: Channel) -> None:
    await asyncio.Event().wait()  # open until the connection ends, which is all that it is for


async def _notify(context: Context, _: _NotifyBody) -> None:
    await context.tell("localllm shows no notifications.")


async def _search(context: Context, body: _SearchBody) -> dict[str, Any]:
    kinds = body.opts.compatibilityTypes
    if not body.opts.searchTerm.strip():
        raise RequestError("There are no words to search for.", "Send a searchTerm.")
    if kinds is not None and "gguf" not in kinds:
        return {"results": []}
    found = await context.state.library.search(body.opts.searchTerm, body.opts.limit)
    exact = body.opts.searchTerm.strip().lower()
    return {
        "results": [
            {
                "name": repository.repo,
                "identifier": {"type": "hf", "identifier": repository.repo},
                "exact": repository.repo.lower() == exact,
                "staffPick": False,
            }
            for repository in found
        ]
    }


async def _download_options(context: Context, body: _OptionsBody) -> dict[str, Any]:
    repo = body.modelSearchResultIdentifier.identifier
    found = await context.state.library.search(repo, _N_MOST)
    repository = next((item for item in found if item.repo.lower() == repo.lower()), None)
    if repository is None:
        raise RequestError(f"The hub has no repository {repo[:80]!r}.", "Search for models again.")
    quants = [quant for model in repository.models for quant in model.quants]
    best = max((quant for quant in quants if quant.fit.runs_well), key=lambda quant: quant.n_bytes, default=None)
    return {
        "results": [
            {
                "quantization": quant.name,
                "name": repository.repo.partition("/")[2] or repository.repo,
                "sizeBytes": quant.n_bytes,
                "fitEstimation": _FITS[quant.fit.verdict],
                "recommended": quant is best,  # the largest that runs well
                "downloadIdentifier": f"{repository.repo}:{quant.name}",
                "indexedModelIdentifier": f"{repository.repo}:{quant.name}",
                "compatibilityType": "gguf",
            }
            for quant in quants
        ]
    }


async def _download(context: Context, body: _DownloadBody, channel: Channel) -> None:
    """Fetch a model; a client that cancels, or goes away, cancels the job, which the next one resumes."""
    jobs = context.state.jobs
    before = frozenset(await context.state.models.catalog.list_models())
    job = await jobs.start(PullOptions(reference=body.downloadIdentifier))

    async def cancel_when_asked() -> None:
        await channel.is_cancelled.wait()
        jobs.cancel(job.id)

    cancelling = asyncio.ensure_future(cancel_when_asked())
    try:
        async with aclosing(jobs.watch_one(job.id)) as states:
            async for job in states:
                if job.n_bytes:
                    update = {
                        "downloadedBytes": job.n_done_bytes or 0,
                        "totalBytes": job.n_bytes,
                        "speedBytesPerSecond": job.bytes_per_s or 0.0,
                    }
                    await channel.send({"type": "downloadProgress", "update": update})
    finally:
        cancelling.cancel()
        if not job.has_ended:
            jobs.cancel(job.id)
    if job.state == "cancelled" and channel.is_cancelled.is_set():
        return
    if job.state != "done":
        raise job.error.error() if job.error else ServiceError(f"The download was {job.state}.", "Start it again.")
    await channel.send({"type": "startFinalizing"})
    model = downloaded_model(body.downloadIdentifier, before, await context.state.models.catalog.list_models())
    await channel.send({"type": "success", "defaultIdentifier": model})


def downloaded_model(reference: str, before: frozenset[ModelRef], after: tuple[ModelRef, ...]) -> str:
    """Return the id of the model that a download of `reference` has added, or found there already."""
    repo = reference.partition(":")[0].lower()
    new = [ref.id for ref in after if ref not in before]
    known = [ref.id for ref in after if ref.repo and ref.repo.lower() in repo]
    return next(iter((*new, *known)), reference)


async def _upload(context: Context, body: _UploadBody) -> dict[str, Any]:
    base64 = Medium(MediaKind.PICTURE, body.contentBase64).base64()
    data = b64decode(base64)
    if format_of(data).kind is not MediaKind.PICTURE:
        raise RequestError(f"{body.name[:80]!r} is not a picture.", "Send sounds to /v1/chat/completions.")
    return {"identifier": context.state.uploads.add(base64), "fileType": "image", "sizeBytes": len(data)}


SYSTEM_ENDPOINTS = {
    "listDownloadedModels": Endpoint(NoParameter, _list_downloaded),
    "listDownloadedModelVariants": Endpoint(_VariantsBody, _list_variants),
    "alive": Endpoint(NoParameter, stream=_alive),
    "notify": Endpoint(_NotifyBody, _notify),
    "version": Endpoint(NoParameter, _constant({"version": __version__, "build": 1})),
    "info": Endpoint(NoParameter, _constant({"pid": os.getpid(), "isDaemon": True, "version": __version__})),
    "getExperimentFlags": Endpoint(NoParameter, _constant([])),
}
REPOSITORY_ENDPOINTS = {
    "searchModels": Endpoint(_SearchBody, _search, scope=KeyScope.MANAGE),
    "getModelDownloadOptions": Endpoint(_OptionsBody, _download_options, scope=KeyScope.MANAGE),
    "downloadModel": Endpoint(_DownloadBody, stream=_download, scope=KeyScope.MANAGE),
}
router = Router()

# Those that are empty say of each call that it is not here, instead of failing to connect.
_NAMESPACES: Mapping[str, Namespace] = {
    "llm": {**MODEL_ENDPOINTS, **LLM_ENDPOINTS},
    "embedding": {**MODEL_ENDPOINTS, **EMBEDDING_ENDPOINTS},
    "system": SYSTEM_ENDPOINTS,
    "repository": REPOSITORY_ENDPOINTS,
    "files": {"uploadFileBase64": Endpoint(_UploadBody, _upload)},
    "diagnostics": {},
    "plugins": {},
    "runtime": {},
}


class Greeting(TypedDict):
    """What tells LM Studio's SDK that it has found a service."""

    lmstudio: Literal[True]


@router.get("/lmstudio-greeting")
async def greeting() -> JsonResponse[Greeting]:
    """The answer by which LM Studio's SDK recognises a service; needs no key."""
    return JsonResponse({"lmstudio": True})


async def _serve(websocket: WebSocket) -> None:
    domain = websocket.url.path.strip("/")
    await serve_namespace(websocket, domain, _NAMESPACES[domain])


for _name in _NAMESPACES:
    router.routes.append(WebSocketRoute(f"/{_name}", _serve))
