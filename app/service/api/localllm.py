"""Our own routes, used by the faces through `app.client`: /api/localllm/status, load and stay.

Here alone errors may name paths of this machine: the caller named them.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from app import __version__
from app.engine.frames import WhenUnfit
from app.service.api.access import departure_of, models_of
from app.service.api.bodies import Body
from app.service.api.engine_counters import counters_of
from app.service.api.localllm_objects import ModelId, ServiceStatus, StaysUntil
from app.service.body import read_body
from app.service.models import ModelManager
from app.service.openapi import gives, refuses, takes
from app.service.problems import openai_error
from app.service.process_memory import resident_bytes
from app.service.served_model import ServedModel
from app.service.streaming import JsonBytes

__all__ = ["error_body", "router"]

router = APIRouter(prefix="/api/localllm")
error_body = partial(openai_error, hide_paths=False)


class LoadBody(Body):
    """`model` is a name or a path; empty is the default model. `when_unfit` null is what the service's settings say."""

    model: str = ""
    when_unfit: WhenUnfit | None = None


class StayBody(Body):
    """For what the service is to outlive the face that started it."""

    until: Literal["jobs-end"]


@router.get("/status", openapi_extra=gives(ServiceStatus))
async def status(request: Request) -> Response:
    """The service's version and its models, each with what its engine holds (`occupancy`) and did (`counters`).

    Both are null while the engine loads, has died or does not answer for a second.
    """
    models = models_of(request)
    return JsonBytes(
        {
            "version": __version__,
            "default_model": models.default.ref.id,
            "stays_until": departure_of(request).stays_until,
            "models": await asyncio.gather(*(_entry(models, model) for model in models.loaded)),
        }
    )


@router.post("/load", openapi_extra=takes(LoadBody) | gives(ModelId) | refuses(404))
async def load(request: Request) -> Response:
    """Begin to load a model; /status tells how far it is."""
    body = await read_body(request, LoadBody)
    model = await models_of(request).load(body.model, body.when_unfit)
    return JsonBytes({"id": model.ref.id})


@router.post("/stay", openapi_extra=takes(StayBody) | gives(StaysUntil))
async def stay(request: Request) -> Response:
    """Let a service that a face started outlive it until its last job has ended and nobody watches; /status tells."""
    await read_body(request, StayBody)
    departure = departure_of(request)
    departure.stay()
    return JsonBytes({"stays_until": departure.stays_until})


async def _entry(models: ModelManager, model: ServedModel) -> dict[str, Any]:
    """What a model is at; the figures of an engine stand under each name that holds it."""
    observed = await model.engine.observe() if model.is_loaded else None
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
