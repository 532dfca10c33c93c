"""Routes of the service itself: /api/localllm/status, load, attend, stay, forget-prefixes, end-thought and schema.

Only our own routes have paths of this machine in their errors: the caller gave them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import Field, StrictStr
from typing_extensions import TypedDict

from app import __version__
from app.engine.grammar.json_grammar import schema_grammar
from app.engine.loop.counters import Counters, Histogram
from app.engine.messages import UnfitPolicy
from app.protocol.sampling import SamplingOptions
from app.protocol.status import EngineCounters, LatencySummary, ModelStatus, ServiceStatus
from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.http.errors import RefusedError, openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from app.service.pool.memory import resident_bytes
from app.settings.private_files import conversation_name, remove_prefixes
from quantizer.system.errors import ErrorInfo

router = Router(prefix="/api/localllm")
_MAX_KEYS = 10_000
error_body = partial(openai_error, hide_paths=False)


class LoadBody(Body):
    """`model` is a name or a path; empty is the default model. `when_unfit` null takes the service's setting."""

    model: str = ""
    when_unfit: UnfitPolicy | None = None


class StayBody(Body):
    """The event until which the service outlives the program that started it."""

    until: Literal["jobs-end"]


class ForgetPrefixesBody(Body):
    """The conversations, by the `prompt_cache_key` of their requests."""

    prompt_cache_keys: Annotated[list[StrictStr], Field(max_length=_MAX_KEYS)]


class ForgottenPrefixes(TypedDict):
    """The files that were removed."""

    n_files: int
    n_bytes: int


class SchemaBody(Body):
    """A JSON schema that answers should follow."""

    json_schema: Annotated[Any, Field(alias="schema")]


class SchemaSize(TypedDict):
    """The size of a schema's grammar in bytes."""

    n_grammar_bytes: int


class ModelId(TypedDict):
    """A model that is being loaded."""

    id: str


class StaysUntil(TypedDict):
    """The event until which the service outlives the program that started it, empty for none."""

    stays_until: Literal["", "jobs-end"]


class EndedThought(TypedDict):
    """The response whose reasoning ends."""

    id: str


class Attendance(TypedDict):
    """The number of clients that attend the service."""

    n_attending: int


@router.get("/status")
async def status(request: Request) -> JsonResponse[ServiceStatus]:
    """The service's version and its models, each with the occupancy and the counters of its engine.

    Both are null while the engine loads, has died or does not respond for a second.
    """
    models = app_state(request).models
    return JsonResponse(
        ServiceStatus(
            version=__version__,
            default_model=models.default.ref.id,
            stays_until=app_state(request).shutdown_policy.stays_until,
            n_attending=app_state(request).shutdown_policy.n_attending,
            models=tuple(await asyncio.gather(*(_status_of(models, model) for model in models.opened))),
        )
    )


@router.post("/load", openapi_extra=errors(404))
async def load(request: Request, body: LoadBody) -> JsonResponse[ModelId]:
    """Begin to load a model; /status reports the progress."""
    model = await app_state(request).models.load(body.model, body.when_unfit)
    return JsonResponse({"id": model.ref.id})


@router.get("/attend")
async def attend(request: Request) -> EventStream[Attendance]:
    """Keep a service that the TUI or CLI started alive until this stream is closed, also without that program."""

    async def events() -> AsyncGenerator[Attendance, None]:
        async with aclosing(app_state(request).shutdown_policy.attend()) as counts:
            async for n_attending in counts:
                yield {"n_attending": n_attending}

    return EventStream(events(), error_body, DONE_EVENTS)


@router.post("/stay")
async def stay(request: Request, body: StayBody) -> JsonResponse[StaysUntil]:  # noqa: ARG001  # checked is enough
    """Keep a service that the TUI or CLI started alive until its last job has ended and no stream is open."""
    policy = app_state(request).shutdown_policy
    policy.stay()
    return JsonResponse({"stays_until": policy.stays_until})


@router.post("/forget-prefixes")
async def forget_prefixes(request: Request, body: ForgetPrefixesBody) -> JsonResponse[ForgottenPrefixes]:
    """Remove the computed prefixes of conversations from the caches of all loaded models and from the disk."""
    models, keys = app_state(request).models, body.prompt_cache_keys
    names = tuple(map(conversation_name, keys))
    await asyncio.gather(*(engine.forget(names) for engine in models.engines.values()))
    files = await asyncio.to_thread(remove_prefixes, models.settings.cache_dir, keys)
    return JsonResponse({"n_files": len(files.paths), "n_bytes": files.n_bytes})


@router.post("/requests/{response_id}/end-thought", openapi_extra=errors(404))
async def end_thought(request: Request, response_id: str) -> JsonResponse[EndedThought]:
    """End the reasoning in a running response of any dialect, by its id, so that its text begins.

    A response whose reasoning has ended goes on as it is.
    """
    if not app_state(request).models.end_thought(response_id):
        raise RefusedError(404, "not_found", "No response of that id is running.", "It has ended, or never began.")
    return JsonResponse({"id": response_id})


@router.post("/schema")
async def check_schema(request: Request, body: SchemaBody) -> JsonResponse[SchemaSize]:  # noqa: ARG001
    """Check whether answers can follow a JSON schema, before a question is asked."""
    grammar = SamplingOptions(grammar=schema_grammar(body.json_schema)).grammar
    return JsonResponse({"n_grammar_bytes": len(grammar.encode())})


async def _status_of(models: ModelManager, model: ServedModel) -> ModelStatus:
    """Return the status of a model; the figures of an engine appear under each name that uses it."""
    metrics = await model.engine.metrics() if model.is_loaded else None
    engine, pid = model.status, model.engine.worker_pid if model.is_loaded else None
    shared = [other.ref.id for other in models.sharing(model) if other.is_loaded] if model.is_loaded else []
    return ModelStatus(
        id=model.ref.id,
        state=engine.state,
        progress=engine.progress,
        n_ctx=engine.facts.n_ctx if engine.facts else 0,
        notices=engine.notices,
        warnings=engine.warnings,
        plan=engine.plan,
        error=ErrorInfo.of(engine.error) if engine.error else None,
        n_running=model.engine.n_running if model.is_loaded else 0,
        worker_pid=pid,
        n_bytes=resident_bytes(pid),
        shares_with=tuple(shared),
        settings=engine.settings,
        sees=model.senses.sees,
        hears=model.senses.hears,
        can_grow=model.can_grow,
        occupancy=metrics.occupancy if metrics else None,
        counters=summarize(metrics.counters) if metrics else None,
    )


def summarize(counters: Counters) -> EngineCounters:
    """Return an engine's counters with shares and rates; all begin at 0 again with a new worker."""
    return EngineCounters(
        n_steps=counters.n_steps,
        busy_s=counters.busy_s,
        n_finished=counters.n_finished,
        n_prompt_tokens=counters.n_prompt_tokens,
        n_cached_tokens=counters.n_cached_tokens,
        cached_share=counters.cached_share,
        prefill_tokens_per_s=counters.prefill_rate,
        n_output_tokens=counters.n_decode_tokens,
        decode_tokens_per_s=counters.decode_rate,
        n_drafted_tokens=counters.n_drafted_tokens,
        n_accepted_tokens=counters.n_accepted_tokens,
        first_token_s=_latency(counters.first_token_s),
        inter_token_s=_latency(counters.inter_token_s),
    )


def _latency(histogram: Histogram) -> LatencySummary:
    return LatencySummary(
        n_samples=histogram.n_samples,
        p50=histogram.quantile(0.5),
        p95=histogram.quantile(0.95),
        total_s=histogram.total,
        buckets=tuple((None if math.isinf(bound) else bound, count) for bound, count in histogram.buckets()),
    )
