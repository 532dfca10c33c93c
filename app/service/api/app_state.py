"""The state of the application that routes use: models, library, planner, jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection, Request

from app.service.api.fields import WithWarnings
from app.service.api.lmstudio.uploads import UploadedFiles
from app.service.api.refused_content import RefusedContent
from app.service.generation.documents import DocumentReader
from app.service.generation.media import MediaFetcher
from app.service.generation.template_caps import TemplateProbe
from app.service.http.access_log import record_of
from app.service.http.metered_keys import MeteredKeys
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService
from app.service.models.manager import ModelManager
from app.service.models.model_file import ModelTask
from app.service.models.plan_service import PlanService
from app.service.models.served_model import ServedModel
from app.service.pool.keep_alive import IdleLimit
from app.service.shutdown_policy import ShutdownPolicy

if TYPE_CHECKING:  # they use this module
    from app.service.api.responses.runs import Runs
    from app.service.api.responses.store import ResponseStore


@dataclass(frozen=True, slots=True)
class AppState:
    """The objects behind the routes.

    `runs` are responses in the background; `document` returns the OpenAPI document, which is made at the first call.
    `metered_keys` are the temporary API keys that are open.
    `instances` are the names that LM Studio's clients gave to loaded models, with the ids of those. In prompts that
    clients write themselves `media_marker` stands for a picture or sound. `media_fetcher` fetches these from the web,
    if the settings allow that.
    """

    models: ModelManager
    library: LibraryService
    plan_service: PlanService
    jobs: JobManager
    shutdown_policy: ShutdownPolicy
    responses: ResponseStore
    runs: Runs
    document: Callable[[], dict[str, Any]]
    metered_keys: MeteredKeys = field(default_factory=MeteredKeys)
    refused: RefusedContent = field(default_factory=RefusedContent)
    template_probe: TemplateProbe = field(default_factory=TemplateProbe)
    instances: dict[str, str] = field(default_factory=dict)
    media_marker: str = field(default_factory=lambda: f"<__media_{token_urlsafe(24)}__>")
    media_fetcher: MediaFetcher | None = None
    uploads: UploadedFiles = field(default_factory=UploadedFiles)
    documents: DocumentReader = field(default_factory=DocumentReader)


def app_state(request: HTTPConnection) -> AppState:
    """Return the state of the application that a request or a websocket came to."""
    state = request.app.state.localllm
    assert isinstance(state, AppState)
    return state


async def model_of(
    request: Request, name: str, idle_limit: IdleLimit | None = None, *, task: ModelTask = "text"
) -> ServedModel:
    """Return the model that answers `request`; its work counts for the request. Raises UnknownModelError.

    A name such as gpt-4o or default means the loaded one that was made for `task`. The model is not unloaded as idle
    before the request ends, and after a use stays loaded for `idle_limit`.
    """
    model, record = await app_state(request).models.answering(name, task), record_of(request.scope)
    record.until_end.enter_context(model.keep_alive.in_request())
    return model.for_request(record, idle_limit)


def planner_warnings(model: ServedModel) -> WithWarnings:
    """Return the field of an answer with the planner's warnings of `model` and the notices of the request, if any."""
    return {"warnings": list(warnings)} if (warnings := model.record.warnings) else {}
