"""Ollama's routes that change which models are here: pull, create, copy, delete; push is refused.

Owns them and the lines that tell of their progress. Downloads and conversions are jobs like all others, but that they
end with the client that asked, as at Ollama's: what a download brought stays for the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from app.job import Job
from app.library.hub_access import access_here
from app.library.index import Index
from app.library.model_ref import ModelRef
from app.library.placement import Placement, link_all, plan_placement
from app.library.removal import plan_removal, remove
from app.library.resolve import UnknownModelError
from app.service.api.access import jobs_of, models_of
from app.service.api.ollama_bodies import CopyBody, CreateBody, ModelBody, PullBody
from app.service.body import read_body
from app.service.jobs.arguments import Arguments, PullArguments, QuantizeArguments
from app.service.jobs.jobs import Jobs
from app.service.models import ModelManager
from app.service.openapi import takes
from app.service.problems import RefusedError, ollama_error, without_paths
from app.service.streaming import LINES, EventStream, JsonBytes, line, while_connected
from app.settings import Settings
from quantizer.errors import RequestError, StorageError, UsageError, UserError

__all__ = ["found", "not_found", "router"]

router = APIRouter()

_SHOWN_DIGITS = 12  # of a digest, in a status
_SUCCESS = {"status": "success"}
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


@router.post("/api/pull", openapi_extra=takes(PullBody))
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


@router.post("/api/create", openapi_extra=takes(CreateBody))
async def create(request: Request) -> Response:
    """Make a model of one that is here: quantized, or under a second name."""
    body = await read_body(request, CreateBody)
    body.check()
    source, name = await found(models_of(request), body.base or ""), _place_name(body.model_name)
    if not body.quantize:
        await _link(source, name, jobs_of(request).settings)
        return await _told(request, body, _already_here())
    arguments = QuantizeArguments(source=str(source.path), file_type=body.quantize.upper(), output=name)
    return await _worked(request, body, arguments, _creating)


@router.post("/api/copy", openapi_extra=takes(CopyBody))
async def copy(request: Request) -> Response:
    """Give a model a second name, which takes no room."""
    body = await read_body(request, CopyBody)
    await _link(await found(models_of(request), body.source), _place_name(body.destination), jobs_of(request).settings)
    return Response()


@router.delete("/api/delete", openapi_extra=takes(ModelBody))
async def delete(request: Request) -> Response:
    """Remove a model from the library; what other programs hold, and the guide, stay."""
    body = await read_body(request, ModelBody)
    models, settings = models_of(request), jobs_of(request).settings
    ref = await found(models, body.model_name)
    try:
        removal = plan_removal(ref, settings.models_dir)
    except UsageError as error:
        raise RefusedError(403, "not_removable", without_paths(error.cause), error.remedy) from error
    await models.release(ref)

    def take_away() -> None:
        remove(removal)
        with Index(settings.cache_dir) as index:
            index.forget(removal.paths)

    await asyncio.to_thread(take_away)
    return Response()


@router.post("/api/push")
async def push() -> Response:
    """Refused: models are not published from here."""
    raise RefusedError(501, "not_implemented", "Models are not published from here.", "Use the command of your hub.")


async def _link(source: ModelRef, name: str, settings: Settings) -> None:
    def link(placement: Placement) -> None:
        with Index(settings.cache_dir) as index:
            link_all(placement, index)

    try:
        placement = await asyncio.to_thread(plan_placement, source, name, settings.models_dir)
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    except StorageError as error:  # a model of that name is there
        raise RefusedError(409, "model_exists", without_paths(error.cause), error.remedy) from error
    await asyncio.to_thread(link, placement)


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
    return JsonBytes(last)


async def _already_here() -> AsyncGenerator[dict[str, Any], None]:
    yield _SUCCESS


async def _course(jobs: Jobs, job: Job, progress: Progress) -> AsyncGenerator[dict[str, Any], None]:
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
    from app.library.catalogue import wanted_by  # imports numbers, which the service starts without

    wanted_by(name, access_here().endpoint)
