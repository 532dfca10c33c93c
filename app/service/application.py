"""The HTTP application: the routes of every dialect, and every error in the form of its dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.common.event_log import log_event
from app.common.service_identity import STOP_PATH, ServiceIdentity
from app.service.api import docs
from app.service.api.anthropic import routes as anthropic
from app.service.api.app_state import AppState
from app.service.api.batches import routes as batches
from app.service.api.batches.batches import Batches, BatchStore
from app.service.api.batches.files import FileStore
from app.service.api.llamacpp import routes as llamacpp
from app.service.api.llamacpp import server_routes as llamacpp_server
from app.service.api.llamacpp import token_routes as llamacpp_tokens
from app.service.api.lmstudio import chat_routes as lmstudio_chat
from app.service.api.lmstudio import model_routes as lmstudio_models
from app.service.api.lmstudio import routes as lmstudio
from app.service.api.lmstudio import sdk_routes as lmstudio_sdk
from app.service.api.native import jobs as native_jobs
from app.service.api.native import library as native_library
from app.service.api.native import read_ahead
from app.service.api.native import status as native_status
from app.service.api.ollama import library_routes as ollama_library
from app.service.api.ollama import routes as ollama
from app.service.api.openai import audio as openai_audio
from app.service.api.openai import models as openai_models
from app.service.api.openai import routes as openai
from app.service.api.openai import speech as openai_speech
from app.service.api.openai.models import is_anthropic
from app.service.api.responses import routes as responses
from app.service.api.responses.exchange import Runs
from app.service.api.responses.store import ResponseStore, StoreLimits
from app.service.generation.media import MediaFetcher
from app.service.http.access_log import AccessLog
from app.service.http.errors import (
    BUG,
    ErrorBody,
    RefusedError,
    anthropic_error,
    llamacpp_error,
    lmstudio_error,
    ollama_error,
    openai_error,
    status_of,
)
from app.service.http.guard import Guard, GuardPolicy
from app.service.http.routing import document, return_type_of
from app.service.http.streaming import JsonResponse
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService, PlanService
from app.service.models.manager import ModelManager
from quantizer.system.errors import StorageError, UserError
from quantizer.system.faults import system_fault

if TYPE_CHECKING:  # which imports this module when its model loads already
    from app.service.shutdown_policy import ShutdownPolicy

# Each has a router.
_ROUTE_MODULES = (
    *(openai, openai_audio, openai_speech, openai_models, responses, batches, anthropic, ollama, ollama_library),
    *(lmstudio, lmstudio_chat, lmstudio_models, lmstudio_sdk, llamacpp, llamacpp_server, llamacpp_tokens),
    *(native_status, read_ahead, native_library, native_jobs, docs),
)
_MODEL_PATHS = ("/v1/models", "/models")
_LLAMACPP_PATHS = (
    *("/apply-template", "/completion", "/detokenize", "/embedding", "/health", "/infill"),
    *("/lora-adapters", "/metrics", "/props", "/rerank", "/slots", "/tokenize"),
)
# By the start of a path; the first that fits counts, OpenAI's otherwise.
_ERROR_BODIES: tuple[tuple[str, ErrorBody], ...] = (
    ("/api/localllm/", native_status.error_body),
    ("/api/v0/", openai_error),
    ("/api/v1/", lmstudio_error),
    ("/api/", ollama_error),
    ("/v1/messages", anthropic_error),
    *((path, openai_models.error_body) for path in _MODEL_PATHS),
    *((path, llamacpp_error) for path in _LLAMACPP_PATHS),
)


def create_app(
    models: ModelManager,
    jobs: JobManager,
    shutdown_policy: ShutdownPolicy,
    policy: GuardPolicy,
    log: Callable[[str], object] | None = None,
    identity: ServiceIdentity | None = None,
) -> ASGIApp:
    """Return the service over `models` and `jobs`, which it closes at the end, behind a guard with `policy`; `log`
    receives a line for each request. `identity` is the one stored for the settings by default."""
    library_service = LibraryService(models.settings)
    stored, runs = ResponseStore(models.settings.data_dir, StoreLimits.of(models.settings)), Runs()

    folder = models.settings.data_dir / "batches"
    running = Batches(BatchStore(folder), FileStore(folder / "files"), jobs, policy.metered)

    async def resume() -> None:
        try:
            running.resume()
        except StorageError as error:
            log_event("service", str(error))

    async def prune() -> None:
        try:
            await stored.prune()
        except StorageError as error:
            log_event("service", str(error))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        beginning = [asyncio.create_task(work) for work in (models.warm_up(), prune(), jobs.adopt(), resume())]
        yield
        for task in beginning:
            task.cancel()
        await asyncio.gather(*beginning, return_exceptions=True)
        await runs.close()
        await running.close()
        await asyncio.gather(library_service.close(), models.close(), jobs.close(), stored.close())

    app = Starlette(
        routes=[route for module in _ROUTE_MODULES for route in module.router.routes],
        lifespan=lifespan,
        exception_handlers={UserError: _user_error, HTTPException: _http_error, Exception: _bug},
    )
    app.router.redirect_slashes = False
    app.state.localllm = AppState(
        models=models,
        library=library_service,
        plan_service=PlanService(models.settings),
        jobs=jobs,
        shutdown_policy=shutdown_policy,
        identity=identity or ServiceIdentity(models.settings),
        all_responses=stored,
        runs=runs,
        batches=running,
        document=cache(create_document),
        metered_keys=policy.metered,
        media_fetcher=_media_fetcher() if models.settings.fetch_media_urls else None,
    )

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and keep the service for it; not for those that only look, as a monitor does for ever."""
        is_use = scope["type"] == "websocket" or scope.get("method") not in ("GET", "HEAD", "OPTIONS", None)
        with shutdown_policy.in_use() if is_use and scope["path"] != STOP_PATH else nullcontext():
            await app(scope, receive, send)

    return AccessLog(Guard(counted, policy, _error_body_for), log)


def _media_fetcher() -> MediaFetcher:
    from app.service.generation.media_fetching import WebFetcher  # imports httpx

    return WebFetcher()


def create_document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes, which takes a moment to make."""
    routes = (route for module in _ROUTE_MODULES for route in module.router.routes)
    return document(routes, lambda path: return_type_of(_error_body(path)))


def _error_body(path: str) -> ErrorBody:
    return next((body for prefix, body in _ERROR_BODIES if path.startswith(prefix)), openai_error)


def _error_body_for(scope: Scope) -> ErrorBody:
    path = scope["path"]
    if path.startswith(_MODEL_PATHS) and is_anthropic(Headers(scope=scope)):  # the list of models is of two dialects
        return anthropic_error
    return _error_body(path)


def _respond(request: Request, error: UserError) -> Response:
    return JsonResponse(_error_body_for(request.scope)(error), status_of(error))


async def _user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return _respond(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cause = f"{request.method} {request.url.path} does not exist."
    allowed = (error.headers or {}).get("Allow", "")
    remedy = f"Ask with {' or '.join(allowed.split(', '))}." if allowed else "GET /docs lists every route."
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    refusal = RefusedError(error.status_code, code, cause, remedy)
    response = _respond(request, refusal)
    response.headers.update(error.headers or {})
    return response


async def _bug(request: Request, error: Exception) -> Response:
    """Answer without the traceback, which the server logs."""
    return _respond(request, system_fault("service", error) or BUG)
