"""Routes of Ollama's dialect that change the library: pull, create, copy, delete; push is refused.

Downloads and conversions are jobs like all others, except that they end with
the client that asked, as in Ollama: the next download resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Literal, NoReturn, NotRequired, TypeAlias

from pydantic import NonNegativeInt
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from app.library.external import recipe_of
from app.library.hub.access import hub_access_from_environment
from app.library.local.index import Index
from app.library.local.model_files import ModelRef, model_output_path
from app.library.local.placement import ImportPlan, link_model, plan_import
from app.library.local.recipe import MAX_RECIPE_BYTES, NO_RECIPE, Recipe, encode_recipe, recipe_path, write_recipe
from app.library.local.resolve import UnknownModelError
from app.options.jobs import PullOptions, QuantizeOptions
from app.protocol.errors import RequestError
from app.protocol.job import Job
from app.service.api.app_state import app_state
from app.service.api.ollama.requests import CopyBody, CreateBody, ModelBody, PullBody
from app.service.http.errors import RefusedError, ollama_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, LineStream, while_connected
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.settings.settings import Settings
from quantizer.system.errors import UsageError, UserError, redact_paths

router = Router()


class StatusResponse(TypedDict):
    status: Literal["success"]


class ProgressResponse(TypedDict):
    status: str
    digest: NotRequired[str]
    total: NotRequired[NonNegativeInt]
    completed: NotRequired[NonNegativeInt]


_SHOWN_DIGITS = 12  # of a digest, in a status
_SUCCESS: StatusResponse = {"status": "success"}
_LATEST = ":latest"

Status: TypeAlias = ProgressResponse | StatusResponse
Statuses: TypeAlias = AsyncGenerator[Status, None]
Progress: TypeAlias = Callable[[Job], list[ProgressResponse]]
StatusAnswer: TypeAlias = JsonResponse[Status] | LineStream[Status]


async def find_model(models: ModelManager, name: str) -> ModelRef:
    """Return the model called `name`. Raises RefusedError in Ollama's words."""
    try:
        return await models.find(name)
    except UnknownModelError as error:
        raise model_not_found(name, error) from error


def model_not_found(name: str, error: UserError) -> RefusedError:
    return RefusedError(404, "model_not_found", f"model '{name[:80]}' not found.", error.remedy)


@router.post("/api/pull", refusals=errors(404, 409, 429, 502))
async def pull(request: Request, body: PullBody) -> StatusAnswer:
    """Fetch a model: a name of the catalogue, `hf.co/org/repo:QUANT`, `org/repo`; a local one is left as it is."""
    name = body.model_name.removesuffix(_LATEST)
    try:
        await asyncio.to_thread(_check_wanted, name)
    except UsageError as error:
        try:
            await app_state(request).models.find(body.model_name)
        except UnknownModelError:
            raise model_not_found(body.model_name, error) from error
        return await _respond(request, body, _already_done())
    jobs = app_state(request).jobs
    job = await jobs.start(PullOptions(reference=name))
    return await _respond(request, body, _statuses(jobs, job, _pulling))


@router.post("/api/create", refusals=errors(404, 409, 429, 502))
async def create(request: Request, body: CreateBody) -> StatusAnswer:
    """Make a model of a local one: quantized, or under a second name, with a recipe of its own or without."""
    body.check()
    models, settings = app_state(request).models, app_state(request).jobs.settings
    source, name = await find_model(models, body.base or ""), body.model_name
    if body.template:
        text = "a text that no template contains"
        if text not in await models.render_template(body.template, [{"role": "user", "content": text}]):
            raise RequestError("The template leaves out the user's messages.", "Give a template over `messages`.")
    recipe = body.recipe(source.id).over(await asyncio.to_thread(recipe_of, source))
    if len(encode_recipe(recipe)) > MAX_RECIPE_BYTES:
        raise RequestError("The recipe of the model is larger than 1 MiB.", "Send its parts with each request.")
    if not body.quantize:
        await _link(source, name, settings, recipe)
        return await _respond(request, body, _already_done())
    arguments = QuantizeOptions(source=str(source.path), file_type=body.quantize.upper(), output=name)
    jobs = app_state(request).jobs
    job = await jobs.start(arguments)

    def creating(job: Job) -> list[ProgressResponse]:
        status: ProgressResponse = {"status": f"quantizing to {job.arguments['file_type']}"}
        return [_with_bytes(status, job) if job.n_bytes else status]

    statuses = _statuses(jobs, job, creating)
    path = model_output_path(source, name, settings.models_dir)
    return await _respond(request, body, _with_recipe(statuses, path, recipe))


@router.post("/api/copy", refusals=errors(404, 409))
async def copy(request: Request, body: CopyBody) -> Response:
    """Give a model a second name, which takes no disk space."""
    source = await find_model(app_state(request).models, body.source)
    recipe = await asyncio.to_thread(recipe_of, source)
    await _link(source, body.destination, app_state(request).jobs.settings, recipe)
    return Response()


@router.delete("/api/delete", refusals=errors(404))
async def delete(request: Request, body: ModelBody) -> Response:
    """Remove a model from the library; models of other programs, and the guide, stay."""
    models, library = app_state(request).models, app_state(request).library
    ref = await find_model(models, body.model_name)
    try:
        await library.remove(ref, is_dry_run=True)
    except UsageError as error:
        raise RefusedError(403, "not_removable", redact_paths(error.cause), error.remedy) from error
    await models.release(ref)
    await library.remove(ref, is_dry_run=False)
    return Response()


@router.post("/api/push", refusals=errors(501))
async def push() -> NoReturn:
    """Refused: localllm does not publish models."""
    raise RefusedError(501, "not_implemented", "localllm does not publish models.", "Use the command of your hub.")


async def _link(source: ModelRef, name: str, settings: Settings, recipe: Recipe) -> None:
    def link(placement: ImportPlan) -> None:
        with Index(settings.cache_dir) as index:
            link_model(placement, index)
        _store_recipe(placement.path, recipe)

    try:
        placement = await asyncio.to_thread(plan_import, source, name, settings.models_dir)
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    await asyncio.to_thread(link, placement)


def _store_recipe(path: Path, recipe: Recipe) -> None:
    if recipe != NO_RECIPE:
        write_recipe(path, recipe)
    else:
        recipe_path(path).unlink(missing_ok=True)


async def _with_recipe(statuses: Statuses, path: Path, recipe: Recipe) -> Statuses:
    """Yield `statuses` of making the model at `path`, and store its recipe before the last one."""
    async with aclosing(statuses):
        async for status in statuses:
            if status == _SUCCESS:
                await asyncio.to_thread(_store_recipe, path, recipe)
            yield status


async def _respond(request: Request, body: PullBody, statuses: Statuses) -> StatusAnswer:
    if body.stream is not False:
        return LineStream(statuses, ollama_error)

    async def last() -> Status:
        async with aclosing(statuses):
            return [_SUCCESS, *[status async for status in statuses]][-1]

    return await while_connected(request, last())


async def _already_done() -> Statuses:
    yield _SUCCESS


async def _statuses(jobs: JobManager, job: Job, progress: Progress) -> Statuses:
    """Yield the progress of `job`, each status once; closed early, it cancels the job. Raises the job's error."""
    before: list[ProgressResponse] = []
    try:
        async with aclosing(jobs.watch_one(job.id)) as states:
            async for job in states:
                statuses = progress(job)
                for status in statuses:
                    if status not in before:
                        yield status
                before = statuses
    finally:
        if not job.has_ended:
            jobs.cancel(job.id)
    if job.state != "done":
        raise job.error.error() if job.error else RefusedError(409, job.state, f"The work was {job.state}.")
    yield _SUCCESS


def _pulling(job: Job) -> list[ProgressResponse]:
    """Return the statuses of a download as Ollama words them (source: its API's page on pulling)."""
    statuses: list[ProgressResponse] = [{"status": "pulling manifest"}]
    if job.n_bytes and job.digest:
        name = job.digest.partition(":")[2][:_SHOWN_DIGITS]
        pulling: ProgressResponse = {"status": f"pulling {name}", "digest": job.digest}
        statuses.append(_with_bytes(pulling, job))
        if job.n_done_bytes == job.n_bytes:
            statuses.append({"status": "verifying sha256 digest"})
    return statuses


def _with_bytes(status: ProgressResponse, job: Job) -> ProgressResponse:
    return {**status, "total": job.n_bytes or 0, "completed": job.n_done_bytes or 0}


def _check_wanted(name: str) -> None:
    from app.library.hub.catalogue import resolve_reference  # imports numbers, which the service starts without

    resolve_reference(name, hub_access_from_environment().endpoint)
