"""Routes of jobs: /api/localllm/jobs. Start, list, watch, cancel, retry and forget long work.

`app.options.jobs` declares the arguments of a job. Errors may contain paths: the caller gave them.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, create_model
from starlette.requests import Request
from typing_extensions import TypedDict

from app.options.jobs import JOBS
from app.protocol.job import Job
from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.api.native.status import error_body
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse

router = Router(prefix="/api/localllm/jobs")


def _body_of(kind: str, options: Any) -> type[Body]:
    fields: dict[str, Any] = {"kind": (Literal[kind], ...), "arguments": (options, ...)}
    return create_model(f"{kind.title()}JobBody", __base__=Body, **fields)


_AnyBody: Any = Annotated[reduce(or_, (_body_of(*item) for item in JOBS.items())), Field(discriminator="kind")]


class JobBody(RootModel[_AnyBody]):  # made of the kinds of jobs that there are
    """A kind of job with its arguments."""


class JobList(TypedDict):
    jobs: list[Job]


class Log(TypedDict):
    log: str


@router.post("", status_code=201, refusals=errors(404, 429))
async def start(request: Request, body: JobBody) -> JsonResponse[Job]:
    """Queue a job; the answer is the job, as `GET /api/localllm/jobs/{job_id}` returns it later."""
    return JsonResponse(await app_state(request).jobs.start(body.root.arguments), 201)


@router.get("")
async def list_jobs(request: Request) -> JsonResponse[JobList]:
    """Every queued, running or ended job, oldest first; of the ended ones the last hundred."""
    return JsonResponse({"jobs": list(app_state(request).jobs.all)})


@router.get("/events")
async def watch_all(request: Request) -> EventStream[Job]:
    """Server-sent events, each a job: all of them at first, then each that changes, ten times a second at most.

    A removed job comes once more, as "forgotten". Closing the stream stops no job.
    """
    return EventStream(app_state(request).jobs.watch(), error_body, DONE_EVENTS)


@router.get("/{job_id}", refusals=errors(404))
async def show(request: Request, job_id: str) -> JsonResponse[Job]:
    """One job."""
    return JsonResponse(app_state(request).jobs.find(job_id))


@router.get("/{job_id}/events", refusals=errors(404))
async def watch_one(request: Request, job_id: str) -> EventStream[Job]:
    """Server-sent events, each this job as it changes, until it has ended; the last event is [DONE]."""
    jobs = app_state(request).jobs
    jobs.find(job_id)
    return EventStream(jobs.watch_one(job_id), error_body, DONE_EVENTS)


@router.get("/{job_id}/log", refusals=errors(404))
async def show_log(request: Request, job_id: str) -> JsonResponse[Log]:
    """The last 256 KiB of a job's log."""
    return JsonResponse({"log": app_state(request).jobs.log(job_id)})


@router.post("/{job_id}/cancel", refusals=errors(404, 409))
async def cancel(request: Request, job_id: str) -> JsonResponse[Job]:
    """Remove a job from the queue, or interrupt it as Ctrl-C does; its events report the end."""
    return JsonResponse(app_state(request).jobs.cancel(job_id))


@router.post("/{job_id}/retry", refusals=errors(404, 409, 429))
async def retry(request: Request, job_id: str) -> JsonResponse[Job]:
    """Queue a job that has ended again: a download resumes."""
    return JsonResponse(await app_state(request).jobs.retry(job_id))


@router.delete("/{job_id}", refusals=errors(404, 409))
async def forget(request: Request, job_id: str) -> JsonResponse[Job]:
    """Remove a job that has ended, and its log; its results stay."""
    return JsonResponse(app_state(request).jobs.forget(job_id))
