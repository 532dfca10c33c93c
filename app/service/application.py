"""The HTTP application: every surface mounted, every error in the shape of the surface that was called.

Owns routing and error handling. Knows nothing of sockets, signals or settings.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from app.service.api import docs
from app.service.api.anthropic import routes as anthropic
from app.service.api.llamacpp import routes as llamacpp_text
from app.service.api.llamacpp import server_routes as llamacpp
from app.service.api.lmstudio import routes as lmstudio
from app.service.api.native import jobs as jobs_api
from app.service.api.native import library, metrics
from app.service.api.native import plan as planning
from app.service.api.native import status as localllm
from app.service.api.ollama import library_routes as ollama_library
from app.service.api.ollama import routes as ollama
from app.service.api.openai import embeddings
from app.service.api.openai import routes as openai
from app.service.api.responses import routes as responses
from app.service.http.access_log import AccessLog
from app.service.http.errors import (
    BUG,
    ErrorBody,
    RefusedError,
    anthropic_error,
    llamacpp_error,
    ollama_error,
    openai_error,
    status_of,
)
from app.service.http.guard import Guard, GuardPolicy
from app.service.http.openapi import document
from app.service.http.streaming import JsonResponse
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService
from app.service.models.manager import ModelManager
from app.service.models.plan_service import PlanService
from app.service.shutdown_policy import ShutdownPolicy
from quantizer.errors import UserError

__all__ = ["create_app", "create_document"]

# A surface has a router and a shape of errors; the paths are those that begin so, the first that fits.
_SURFACES = (
    openai,
    responses,
    embeddings,
    anthropic,
    ollama,
    ollama_library,
    lmstudio,
    llamacpp,
    llamacpp_text,
    metrics,
    localllm,
    library,
    planning,
    jobs_api,
    docs,
)
_LLAMACPP_PATHS = (
    "/apply-template",
    "/completion",
    "/detokenize",
    "/health",
    "/infill",
    "/lora-adapters",
    "/metrics",
    "/props",
    "/rerank",
    "/slots",
    "/tokenize",
)
_ERROR_BODIES: tuple[tuple[str, ErrorBody], ...] = (
    ("/api/localllm/", localllm.error_body),
    ("/api/v0/", openai_error),
    ("/api/", ollama_error),
    ("/v1/messages", anthropic_error),
    *((path, llamacpp_error) for path in _LLAMACPP_PATHS),
)
_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(
    models: ModelManager,
    jobs: JobManager,
    shutdown_policy: ShutdownPolicy,
    policy: GuardPolicy,
    log: Callable[[str], object] | None = None,
) -> ASGIApp:
    """Return the service over `models` and `jobs`, which it closes at the end, behind a guard with `policy`.

    `log` gets a line for each request.
    """
    served = LibraryService(models.settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(models.warm_up())
        yield
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await asyncio.gather(served.close(), models.close(), jobs.close())

    # The document and the page are ours (api/docs.py): FastAPI's page loads its scripts from the network.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.models = models
    app.state.library = served
    app.state.planner = PlanService(models.settings)
    app.state.jobs = jobs
    app.state.shutdown_policy = shutdown_policy
    app.state.document = cache(create_document)
    for surface in _SURFACES:
        app.include_router(surface.router)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return AccessLog(Guard(app, policy, _error_body), log)


def create_document() -> dict[str, Any]:
    """Return the document of every surface; it takes a moment to make."""
    return document((route for surface in _SURFACES for route in surface.router.routes), _error_kind)


def _error_kind(path: str) -> Any:
    """Return what an error at `path` looks like: what the surface's function says that it returns."""
    return inspect.signature(_error_body(path), eval_str=True).return_annotation


def _error_body(path: str) -> ErrorBody:
    return next((body for prefix, body in _ERROR_BODIES if path.startswith(prefix)), openai_error)


def _respond(request: Request, error: UserError) -> Response:
    status = status_of(error)
    return JsonResponse(_error_body(request.url.path)(error), status)


async def _user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return _respond(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    cause = f"{request.method} {request.url.path} is not served here."
    allowed = (error.headers or {}).get("Allow", "")
    remedy = f"Ask with {' or '.join(allowed.split(', '))}." if allowed else "GET /docs lists every route."
    refusal = RefusedError(error.status_code, _CODES.get(error.status_code, "invalid_request"), cause, remedy)
    response = _respond(request, refusal)
    response.headers.update(error.headers or {})
    return response


async def _bug(request: Request, _error: Exception) -> Response:
    """The server logs the traceback; the client learns nothing of it."""
    return _respond(request, BUG)
