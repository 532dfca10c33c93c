"""What every surface needs from the application it is mounted in."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from app.service.departure import Departure
from app.service.jobs.jobs import Jobs
from app.service.library import ServedLibrary
from app.service.models import ModelManager
from app.service.planner import Planner
from app.service.request_record import record_of
from app.service.served_model import ServedModel

__all__ = ["departure_of", "document_of", "jobs_of", "library_of", "model_of", "models_of", "planner_of"]


def models_of(request: Request) -> ModelManager:
    """Return the service's models."""
    models = request.app.state.models
    assert isinstance(models, ModelManager)
    return models


async def model_of(request: Request, name: str, idle_s: float | None = None) -> ServedModel:
    """Return the model that `request` names, whose work is noted with it. Raises UnknownModelError.

    `idle_s` is for how many idle seconds it is to stay, None as long as it would anyway.
    """
    model = await models_of(request).named(name)
    if idle_s is not None:
        model.keep_alive.keep(idle_s)
    return model.for_request(record_of(request.scope))


def library_of(request: Request) -> ServedLibrary:
    """Return the library as the service has it."""
    library = request.app.state.library
    assert isinstance(library, ServedLibrary)
    return library


def planner_of(request: Request) -> Planner:
    """Return what plans for the service."""
    planner = request.app.state.planner
    assert isinstance(planner, Planner)
    return planner


def jobs_of(request: Request) -> Jobs:
    """Return the service's jobs."""
    jobs = request.app.state.jobs
    assert isinstance(jobs, Jobs)
    return jobs


def departure_of(request: Request) -> Departure:
    """Return when the service ends."""
    departure = request.app.state.departure
    assert isinstance(departure, Departure)
    return departure


async def document_of(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of every surface, which is made once, when it is first asked for."""
    return await asyncio.to_thread(request.app.state.document)
