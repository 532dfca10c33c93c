"""Ollama's routes that change which models are here: pull, create, copy, delete; push is refused.

Owns them and the lines that tell of their progress. Downloads and conversions are jobs like all others, but that they
end with the client that asked, as at Ollama's: what a download brought stays for the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from app.library.hub.access import hub_access_from_environment
from app.library.local.index import Index
from app.library.local.model_files import ModelRef
from app.library.local.naming import model_output_path
from app.library.local.placement import ImportPlan, link_model, plan_import
from app.library.local.recipe import (
    MAX_RECIPE_BYTES,
    NO_RECIPE,
    Recipe,
    encoded,
    read_recipe,
    recipe_path,
    write_recipe,
)
from app.library.local.removal import plan_removal, remove
from app.library.local.resolve import UnknownModelError
from app.protocol.job import Job
from app.service.api.app_state import jobs_of, models_of
from app.service.api.ollama.requests import CopyBody, CreateBody, ModelBody, PullBody
from app.service.api.ollama.schemas import ProgressResponse, StatusResponse
from app.service.http.body import read_body
from app.service.http.errors import RefusedError, ollama_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import LINES, EventStream, JsonResponse, line, while_connected
from app.service.jobs.arguments import Arguments, PullArguments, QuantizeArguments
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.settings.settings import Settings
from quantizer.errors import RequestError, UsageError, UserError, redact_paths

__all__ = ["found", "not_found", "router"]

router = APIRouter()

_SHOWN_DIGITS = 12  # of a digest, in a status
_SUCCESS = {"status": "success"}
_WORKS = gives(StatusResponse, lines=ProgressResponse | StatusResponse) | refuses(404, 409, 429, 502)
_LATEST = ":latest"


async def found(models: ModelManager, name: str) -> ModelRef:
    """Return the model that is called `name`. Raises RefusedError in Ollama's words."""
    try:
        return await models.find(name)
    except UnknownModelError as error:
        raise not_found(name, error) from error


def not_found(name: str, error: UserError) -> RefusedError:
    """Return what Ollama says of a model that is not here, with what is."""
    return RefusedError(404, "model_not_found", f"model '{name[:80]}' not found.", error.remedy)


@router.post("/api/pull", openapi_extra=takes(PullBody) | _WORKS)
async def pull(request: Request) -> Response:
    """Fetch a model: a name of the catalogue, `hf.co/org/repo:QUANT`, `org/repo`. One that is here only is here."""
    body = await read_body(request, PullBody)
    name = body.model_name.removesuffix(_LATEST)
    try:
        await asyncio.to_thread(_check_wanted, name)
    except UsageError as error:
        try:
            await models_of(request).find(body.model_name)
        except UnknownModelError:
            raise not_found(body.model_name, error) from error
        return await _told(request, body, _already_here())
    return await _worked(request, body, PullArguments(reference=name), _pulling)


@router.post("/api/create", openapi_extra=takes(CreateBody) | _WORKS)
async def create(request: Request) -> Response:
    """Make a model of one that is here: quantized, or under a second name, with a recipe of its own or without."""
    body = await read_body(request, CreateBody)
    body.check()
    models, settings = models_of(request), jobs_of(request).settings
    source, name = await found(models, body.base or ""), _place_name(body.model_name)
    if body.template:
        await _check_template(models, body.template)
    recipe = body.recipe(source.id).over(await asyncio.to_thread(read_recipe, source.path))
    if len(encoded(recipe)) > MAX_RECIPE_BYTES:
        raise RequestError("What the model is to be made with is larger than 1 MiB.", "Send it with each request.")
    if not body.quantize:
        await _link(source, name, settings, recipe)
        return await _told(request, body, _already_here())
    arguments = QuantizeArguments(source=str(source.path), file_type=body.quantize.upper(), output=name)
    jobs = jobs_of(request)
    course = _course(jobs, await jobs.start(arguments), _creating)
    return await _told(request, body, _then_kept(course, model_output_path(source, name, settings.models_dir), recipe))


@router.post("/api/copy", openapi_extra=takes(CopyBody) | gives(None) | refuses(404, 409))
async def copy(request: Request) -> Response:
    """Give a model a second name, which takes no room."""
    body = await read_body(request, CopyBody)
    source = await found(models_of(request), body.source)
    recipe = await asyncio.to_thread(read_recipe, source.path)
    await _link(source, _place_name(body.destination), jobs_of(request).settings, recipe)
    return Response()


@router.delete("/api/delete", openapi_extra=takes(ModelBody) | gives(None) | refuses(404))
async def delete(request: Request) -> Response:
    """Remove a model from the library; what other programs hold, and the guide, stay."""
    body = await read_body(request, ModelBody)
    models, settings = models_of(request), jobs_of(request).settings
    ref = await found(models, body.model_name)
    try:
        removal = plan_removal(ref, settings.models_dir)
    except UsageError as error:
        raise RefusedError(403, "not_removable", redact_paths(error.cause), error.remedy) from error
    await models.release(ref)

    def take_away() -> None:
        remove(removal)
        with Index(settings.cache_dir) as index:
            index.forget(removal.paths)

    await asyncio.to_thread(take_away)
    return Response()


@router.post("/api/push", openapi_extra=refuses(501))
async def push() -> Response:
    """Refused: models are not published from here."""
    raise RefusedError(501, "not_implemented", "Models are not published from here.", "Use the command of your hub.")


async def _check_template(models: ModelManager, template: str) -> None:
    """Raise RequestError for a template that is not Jinja, or says nothing of what it is given."""
    said = "said by nobody else"
    prompt = await models.render_template(template, [{"role": "user", "content": said}])
    if said not in prompt:
        raise RequestError("The template leaves out what the user says.", "Give one that goes over `messages`.")


async def _link(source: ModelRef, name: str, settings: Settings, recipe: Recipe) -> None:
    def link(placement: ImportPlan) -> None:
        with Index(settings.cache_dir) as index:
            link_model(placement, index)
        _keep(placement.path, recipe)

    try:
        placement = await asyncio.to_thread(plan_import, source, name, settings.models_dir)
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    await asyncio.to_thread(link, placement)


def _keep(path: Path, recipe: Recipe) -> None:
    """Let the model at `path` have `recipe`, and none that a model of that name had before."""
    if recipe != NO_RECIPE:
        write_recipe(path, recipe)
    else:
        recipe_path(path).unlink(missing_ok=True)


async def _then_kept(
    course: AsyncGenerator[dict[str, Any], None], path: Path, recipe: Recipe
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield `course`, which makes the model at `path`, and keep its recipe before the last status."""
    async with aclosing(course):
        async for status in course:
            if status == _SUCCESS:
                await asyncio.to_thread(_keep, path, recipe)
            yield status


def _place_name(name: str) -> str:
    """Return the name in the library for what clients call NAME:TAG; a colon is no part of a file's name."""
    return name.removesuffix(_LATEST).replace(":", "-")


Progress = Callable[[Job], list[dict[str, Any]]]


async def _worked(request: Request, body: PullBody, arguments: Arguments, progress: Progress) -> Response:
    """Answer with the course of a new job, or with its end only."""
    jobs = jobs_of(request)
    job = await jobs.start(arguments)
    return await _told(request, body, _course(jobs, job, progress))


async def _told(request: Request, body: PullBody, statuses: AsyncGenerator[dict[str, Any], None]) -> Response:
    if body.stream is not False:
        return EventStream(_lines(statuses), ollama_error, LINES)
    return await while_connected(request, _last(statuses))


async def _lines(statuses: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(statuses):
        async for status in statuses:
            yield line(status)


async def _last(statuses: AsyncGenerator[dict[str, Any], None]) -> Response:
    last = _SUCCESS
    async with aclosing(statuses):
        async for status in statuses:
            last = status
    return JsonResponse(last)


async def _already_here() -> AsyncGenerator[dict[str, Any], None]:
    yield _SUCCESS


async def _course(jobs: JobManager, job: Job, progress: Progress) -> AsyncGenerator[dict[str, Any], None]:
    """Yield how `job` goes on, each status once; left early, the job is cancelled. Raises what it failed of."""
    before: list[dict[str, Any]] = []
    try:
        async with aclosing(jobs.watch_one(job.id)) as course:
            async for job in course:
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


def _pulling(job: Job) -> list[dict[str, Any]]:
    """Return the statuses of a download as Ollama words them (source: its API's page on pulling)."""
    statuses: list[dict[str, Any]] = [{"status": "pulling manifest"}]
    if job.n_bytes and job.digest:
        name = job.digest.partition(":")[2][:_SHOWN_DIGITS]
        counts = {"total": job.n_bytes, "completed": job.n_done_bytes or 0}
        statuses.append({"status": f"pulling {name}", "digest": job.digest, **counts})
        if job.n_done_bytes == job.n_bytes:
            statuses.append({"status": "verifying sha256 digest"})
    return statuses


def _creating(job: Job) -> list[dict[str, Any]]:
    counts = {"total": job.n_bytes, "completed": job.n_done_bytes or 0} if job.n_bytes else {}
    return [{"status": f"quantizing to {job.arguments['file_type']}", **counts}]


def _check_wanted(name: str) -> None:
    """Raise UsageError unless `name` is one that can be fetched."""
    from app.library.hub.catalogue import resolve_reference  # imports numbers, which the service starts without

    resolve_reference(name, hub_access_from_environment().endpoint)
