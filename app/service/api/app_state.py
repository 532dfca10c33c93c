"""The state of the application that routes use: models, library, planner, jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from app.service.api.fields import WithWarnings
from app.service.http.request_record import record_of
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService
from app.service.models.manager import ModelManager
from app.service.models.plan_service import PlanService
from app.service.models.served_model import ServedModel
from app.service.shutdown_policy import ShutdownPolicy

__all__ = [
    "document_of",
    "jobs_of",
    "library_of",
    "model_of",
    "models_of",
    "plan_service_of",
    "planner_warnings",
    "shutdown_policy_of",
]


def models_of(request: Request) -> ModelManager:
    """Return the service's models."""
    models = request.app.state.models
    assert isinstance(models, ModelManager)
    return models


async def model_of(request: Request, name: str) -> ServedModel:
    """Return the model that `request` names; its work counts for the request. Raises UnknownModelError."""
    return (await models_of(request).named(name)).for_request(record_of(request.scope))


def planner_warnings(model: ServedModel) -> WithWarnings:
    """Return the field of an answer with the planner's warnings of `model`, where it has any."""
    return {"warnings": list(warnings)} if (warnings := model.engine.status.warnings) else {}


def library_of(request: Request) -> LibraryService:
    """Return the library."""
    library = request.app.state.library
    assert isinstance(library, LibraryService)
    return library


def plan_service_of(request: Request) -> PlanService:
    """Return the planner."""
    planner = request.app.state.planner
    assert isinstance(planner, PlanService)
    return planner


def jobs_of(request: Request) -> JobManager:
    """Return the service's jobs."""
    jobs = request.app.state.jobs
    assert isinstance(jobs, JobManager)
    return jobs


def shutdown_policy_of(request: Request) -> ShutdownPolicy:
    """Return the policy that decides when the service ends."""
    shutdown_policy = request.app.state.shutdown_policy
    assert isinstance(shutdown_policy, ShutdownPolicy)
    return shutdown_policy


async def document_of(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of every surface, made at the first call."""
    return await asyncio.to_thread(request.app.state.document)
