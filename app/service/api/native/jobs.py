"""Jobs over HTTP: /api/localllm/jobs. Start, list, watch, cancel, retry and forget long work.

Owns these routes. What a job is told is `app.service.jobs.arguments`'s; errors may name paths: the caller named them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import Field, RootModel

from app.protocol.job import Job
from app.service.api.app_state import jobs_of
from app.service.api.fields import Body
from app.service.api.native.schemas import JobList, Log
from app.service.api.native.status import error_body
from app.service.http.body import read_body
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import EventStream, JsonResponse, event
from app.service.jobs.arguments import BenchArguments, EvalArguments, PullArguments, QuantizeArguments, TuneArguments

__all__ = ["router"]

router = APIRouter(prefix="/api/localllm/jobs")

_DONE = b"data: [DONE]\n\n"


class PullJobBody(Body):
    """Fetch a model."""

    kind: Literal["pull"]
    arguments: PullArguments


class QuantizeJobBody(Body):
    """Make a smaller GGUF."""

    kind: Literal["quantize"]
    arguments: QuantizeArguments


class TuneJobBody(Body):
    """Measure how a model runs fastest here."""

    kind: Literal["tune"]
    arguments: TuneArguments


class EvalJobBody(Body):
    """Measure how well a model predicts a text."""

    kind: Literal["eval"]
    arguments: EvalArguments


class BenchJobBody(Body):
    """Measure how fast a model answers, in a service of its own."""

    kind: Literal["bench"]
    arguments: BenchArguments


_AnyBody: TypeAlias = Annotated[
    PullJobBody | QuantizeJobBody | TuneJobBody | EvalJobBody | BenchJobBody, Field(discriminator="kind")
]


class JobBody(RootModel[_AnyBody]):
    """A kind of job with its arguments."""


@router.post("", openapi_extra=takes(JobBody) | gives(Job, status=201) | refuses(404, 429))
async def start(request: Request) -> Response:
    """Put a job into the queue; the answer is the job, as `GET /api/localllm/jobs/{job_id}` tells it later."""
    body = await read_body(request, JobBody)
    return JsonResponse((await jobs_of(request).start(body.root.arguments)), 201)


@router.get("", openapi_extra=gives(JobList))
async def list_jobs(request: Request) -> Response:
    """Every job that waits, runs or has ended, oldest first; of the ended ones the last hundred."""
    return JsonResponse({"jobs": list(jobs_of(request).all)})


@router.get("/events", openapi_extra=gives(None, events=Job))
async def watch_all(request: Request) -> Response:
    """Server-sent events, each a job: all of them as they stand, then each as it changes, ten times a second at most.

    One that is removed comes once more, as "forgotten". Whoever leaves stops no job.
    """
    return EventStream(_events(jobs_of(request).watch()), error_body)


@router.get("/{job_id}", openapi_extra=gives(Job) | refuses(404))
async def show(request: Request, job_id: str) -> Response:
    """One job as it stands."""
    return JsonResponse(jobs_of(request).find(job_id))


@router.get("/{job_id}/events", openapi_extra=gives(None, events=Job) | refuses(404))
async def watch_one(request: Request, job_id: str) -> Response:
    """Server-sent events, each this job as it stands, until it has ended; the last one says [DONE]."""
    jobs = jobs_of(request)
    jobs.find(job_id)
    return EventStream(_events(jobs.watch_one(job_id)), error_body)


@router.get("/{job_id}/log", openapi_extra=gives(Log) | refuses(404))
async def show_log(request: Request, job_id: str) -> Response:
    """What a job has said, the last 256 KiB of it."""
    return JsonResponse({"log": jobs_of(request).log(job_id)})


@router.post("/{job_id}/cancel", openapi_extra=gives(Job) | refuses(404, 409))
async def cancel(request: Request, job_id: str) -> Response:
    """Take a job from the queue, or let it end as with Ctrl-C; its events tell when it has."""
    return JsonResponse(jobs_of(request).cancel(job_id))


@router.post("/{job_id}/retry", openapi_extra=gives(Job) | refuses(404, 409, 429))
async def retry(request: Request, job_id: str) -> Response:
    """Put a job that has ended into the queue again: a download goes on where it stopped."""
    return JsonResponse(await jobs_of(request).retry(job_id))


@router.delete("/{job_id}", openapi_extra=gives(Job) | refuses(404, 409))
async def forget(request: Request, job_id: str) -> Response:
    """Remove a job that has ended, and its log; what it made stays."""
    return JsonResponse(jobs_of(request).forget(job_id))


async def _events(jobs: AsyncGenerator[Job, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(jobs):
        async for job in jobs:
            yield event(job)
    yield _DONE
