"""The engine's counters -> the `counters` of a model in /api/localllm/status.

Owns these fields. Knows nothing of how they were counted.

Our own routes, used by the faces through `app.client`: /api/localllm/status, load and stay.

Here alone errors may name paths of this machine: the caller named them.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from app import __version__
from app.engine.loop import counters as engine
from app.engine.loop.counters import Histogram
from app.engine.protocol.messages import UnfitPolicy
from app.service.api.app_state import models_of, shutdown_policy_of
from app.service.api.fields import Body
from app.service.api.native.schemas import Counters, LatencySummary, ModelId, ServiceStatus, StaysUntil
from app.service.http.body import read_body
from app.service.http.errors import openai_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from app.service.pool.memory import resident_bytes

__all__ = ["counters_of", "error_body", "router"]


def counters_of(counters: engine.Counters) -> Counters:
    """Return sums since the engine started, shares and rates of them, and how waits were spread.

    `cached_share` is of prompt tokens; rates are tokens a second as each answer got them. All begin at 0 again with a
    new worker.
    """
    return {
        "n_steps": counters.n_steps,
        "busy_s": counters.busy_s,
        "n_finished": counters.n_finished,
        "n_prompt_tokens": counters.n_prompt_tokens,
        "n_cached_tokens": counters.n_cached_tokens,
        "cached_share": counters.cached_share,
        "prefill_tokens_per_s": counters.prefill_rate,
        "n_output_tokens": counters.n_decode_tokens,
        "decode_tokens_per_s": counters.decode_rate,
        "n_drafted_tokens": counters.n_drafted_tokens,
        "n_accepted_tokens": counters.n_accepted_tokens,
        "first_token_s": _spread(counters.first_token_s),
        "inter_token_s": _spread(counters.inter_token_s),
    }


def _spread(histogram: Histogram) -> LatencySummary:
    """Return count, sum, median, 95th percentile (null before the first) and the buckets in use.

    A bucket is (upper bound, count); the bound of the last one is null where there is none.
    """
    return {
        "count": histogram.n_samples,
        "sum": histogram.total,
        "p50": histogram.quantile(0.5),
        "p95": histogram.quantile(0.95),
        "buckets": [(None if math.isinf(bound) else bound, count) for bound, count in histogram.buckets()],
    }


router = APIRouter(prefix="/api/localllm")
error_body = partial(openai_error, hide_paths=False)


class LoadBody(Body):
    """`model` is a name or a path; empty is the default model. `when_unfit` null is what the service's settings say."""

    model: str = ""
    when_unfit: UnfitPolicy | None = None


class StayBody(Body):
    """For what the service is to outlive the face that started it."""

    until: Literal["jobs-end"]


@router.get("/status", openapi_extra=gives(ServiceStatus))
async def status(request: Request) -> Response:
    """The service's version and its models, each with what its engine holds (`occupancy`) and did (`counters`).

    Both are null while the engine loads, has died or does not answer for a second.
    """
    models = models_of(request)
    return JsonResponse(
        {
            "version": __version__,
            "default_model": models.default.ref.id,
            "stays_until": shutdown_policy_of(request).stays_until,
            "models": await asyncio.gather(*(_entry(models, model) for model in models.loaded)),
        }
    )


@router.post("/load", openapi_extra=takes(LoadBody) | gives(ModelId) | refuses(404))
async def load(request: Request) -> Response:
    """Begin to load a model; /status tells how far it is."""
    body = await read_body(request, LoadBody)
    model = await models_of(request).load(body.model, body.when_unfit)
    return JsonResponse({"id": model.ref.id})


@router.post("/stay", openapi_extra=takes(StayBody) | gives(StaysUntil))
async def stay(request: Request) -> Response:
    """Let a service that a face started outlive it until its last job has ended and nobody watches; /status tells."""
    await read_body(request, StayBody)
    shutdown_policy = shutdown_policy_of(request)
    shutdown_policy.stay()
    return JsonResponse({"stays_until": shutdown_policy.stays_until})


async def _entry(models: ModelManager, model: ServedModel) -> dict[str, Any]:
    """What a model is at; the figures of an engine stand under each name that holds it."""
    observed = await model.engine.metrics() if model.is_loaded else None
    engine, pid = model.status, model.engine.worker_pid if model.is_loaded else None
    return {
        "id": model.ref.id,
        "state": engine.state,
        "progress": engine.progress,
        "n_ctx": engine.ready.n_ctx if engine.ready else 0,
        "notices": engine.notices,
        "warnings": engine.warnings,
        "plan": engine.plan,
        "error": error_body(engine.error)["error"] if engine.error else None,
        "n_running": model.engine.n_running if model.is_loaded else 0,
        "worker_pid": pid,
        "n_bytes": resident_bytes(pid),
        "shares_with": [other.ref.id for other in models.sharing(model) if other.is_loaded] if model.is_loaded else [],
        "occupancy": asdict(observed.occupancy) if observed else None,
        "counters": counters_of(observed.counters) if observed else None,
    }
