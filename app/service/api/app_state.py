"""What every surface needs from the application it is mounted in."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from app.service.http.request_record import record_of
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService
from app.service.models.manager import ModelManager
from app.service.models.plan_service import PlanService
from app.service.models.served_model import ServedModel
from app.service.shutdown_policy import ShutdownPolicy

__all__ = ["document_of", "jobs_of", "library_of", "model_of", "models_of", "plan_service_of", "shutdown_policy_of"]


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
        model.keep_alive.set_idle_limit(idle_s)
    return model.for_request(record_of(request.scope))


def library_of(request: Request) -> LibraryService:
    """Return the library as the service has it."""
    library = request.app.state.library
    assert isinstance(library, LibraryService)
    return library


def plan_service_of(request: Request) -> PlanService:
    """Return what plans for the service."""
    planner = request.app.state.planner
    assert isinstance(planner, PlanService)
    return planner


def jobs_of(request: Request) -> JobManager:
    """Return the service's jobs."""
    jobs = request.app.state.jobs
    assert isinstance(jobs, JobManager)
    return jobs


def shutdown_policy_of(request: Request) -> ShutdownPolicy:
    """Return when the service ends."""
    shutdown_policy = request.app.state.shutdown_policy
    assert isinstance(shutdown_policy, ShutdownPolicy)
    return shutdown_policy


async def document_of(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of every surface, which is made once, when it is first asked for."""
    return await asyncio.to_thread(request.app.state.document)
