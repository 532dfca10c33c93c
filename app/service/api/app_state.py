"""What routes of all dialects use: the state of the application, the model of a request, and its chat turn."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection, Request

from app.common.service_identity import ServiceIdentity
from app.engine.request import BATCH_PRIORITY
from app.library.local.resolve import BUILT_IN, UnknownModelError
from app.protocol.chat import BATCH, PRIORITY_HEADER
from app.protocol.errors import RequestError
from app.service.api.fields import WithWarnings
from app.service.api.lmstudio.sdk_requests import UploadedFiles
from app.service.api.text_request import PromptField
from app.service.generation.media import DocumentReader, MediaFetcher, PromptMedia, UnreadableError
from app.service.http.access_log import MeteredKeys, record_of
from app.service.http.guard import caller_of, may_manage
from app.service.http.streaming import unless_gone
from app.service.jobs.manager import JobManager
from app.service.models.library import LibraryService, PlanService
from app.service.models.manager import ModelManager
from app.service.models.model_file import Purpose, is_placeholder
from app.service.models.served_model import ServedModel
from app.service.pool.engine_pool import IdleLimit
from app.service.threads import in_thread

if TYPE_CHECKING:  # they use this module
    from app.service.api.batches.batches import Batches
    from app.service.api.responses.exchange import Runs
    from app.service.api.responses.store import ResponseStore
    from app.service.shutdown_policy import ShutdownPolicy

Made = TypeVar("Made")
AnyPromptBody = TypeVar("AnyPromptBody", bound=PromptField)

_WORDS: Mapping[str, tuple[str, str]] = {"image": ("sees pictures", "see"), "audio": ("hears sounds", "hear")}
_SMALLEST_THAT_HEARS = "ggml-org/Qwen3-ASR-0.6B-GGUF"
_ONE_THAT_SPEAKS = "ggml-org/Qwen3-TTS-12Hz-1.7B-Base-GGUF"
MAX_REMEMBERED = 256  # digests of refused content


class RefusedContent:
    """The digests of content that was refused, the latest last: it is not refused again. Some clients leave a refused
    picture in the conversation, and put the next question into its message."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._digests

    def is_known(self, content: str) -> bool:
        return _digest(content) in self._digests

    def add(self, content: str) -> None:
        digest = _digest(content)
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        while len(self._digests) > MAX_REMEMBERED:
            self._digests.popitem(last=False)


def _digest(content: str) -> bytes:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class AppState:
    """The objects behind the routes.

    `identity` proves whose the service is; `all_responses` are those of every key, of which `responses_of` gives a
    request its own; `runs` are responses in the background; `document` returns the OpenAPI
    document, which is made at the first call.
    `metered_keys` are the temporary API keys that are open.
    `open_threads` are the owners and messages of Anthropic's threads that a request is going on from.
    `instances` are the names that LM Studio's clients gave to loaded models, with the ids of those. In prompts that
    clients write themselves `media_marker` stands for a picture or sound. `media_fetcher` fetches these from the web,
    if the settings allow that.
    """

    models: ModelManager
    library: LibraryService
    plan_service: PlanService
    jobs: JobManager
    shutdown_policy: ShutdownPolicy
    identity: ServiceIdentity
    all_responses: ResponseStore
    runs: Runs
    batches: Batches
    document: Callable[[], dict[str, Any]]
    metered_keys: MeteredKeys = field(default_factory=MeteredKeys)
    refused: RefusedContent = field(default_factory=RefusedContent)
    open_threads: set[tuple[str, str]] = field(default_factory=set)
    instances: dict[str, str] = field(default_factory=dict)
    media_marker: str = field(default_factory=lambda: f"<__media_{token_urlsafe(24)}__>")
    media_fetcher: MediaFetcher | None = None
    uploads: UploadedFiles = field(default_factory=UploadedFiles)
    documents: DocumentReader = field(default_factory=DocumentReader)


def app_state(request: HTTPConnection) -> AppState:
    state = request.app.state.localllm
    assert isinstance(state, AppState)
    return state


def responses_of(request: Request) -> ResponseStore:
    """Return the stored responses and conversations as the key of the request sees them."""
    return app_state(request).all_responses.seen_by(caller_of(request.scope))


async def model_of(
    request: Request, name: str, idle_limit: IdleLimit | None = None, *, purpose: Purpose = "text"
) -> ServedModel:
    """Return the model that answers `request`; its work counts for the request. Raises UnknownModelError. A name such
    as gpt-4o or default means the default, or one that serves `purpose`. The model is not unloaded as idle before
    the request ends, and after a use stays loaded for `idle_limit`."""
    model, record = await app_state(request).models.answering(name, purpose), record_of(request.scope)
    if model.ref.place == BUILT_IN and is_placeholder(name):  # a client that nobody set up: its answers are poor
        remedy = "Name a model, or make one the default by the setting `model`."
        record.notices.append(f"{name!r} is no local model: {model.ref.id}, the built-in one, answers. {remedy}")
    record.priority = BATCH_PRIORITY if request.headers.get(PRIORITY_HEADER) == BATCH else 0
    record.until_end.enter_context(model.keep_alive.in_request())
    if idle_limit is not None and not may_manage(
        request.scope
    ):  # it decides neither when they go nor how long they stay
        record.notices.append("keep_alive has no effect: this key may only use models.")
        idle_limit = None
    return model.for_request(record, idle_limit)


async def hearing_model_of(request: Request, name: str) -> ServedModel:
    """Return the model that hears the sound of `request`, as `model_of`. Raises RequestError, with a remedy that names
    one, where the model does not hear, or of several none is named."""
    model, able = await _model_for(request, name, "sounds")
    if model is not None and model.senses.hears:
        return model
    if len(able) > 1 and (model is None or not name):
        raise RequestError("The request names no model, and several here hear sounds.", f"Name one: {', '.join(able)}.")
    cause = "No model here hears sounds." if model is None else f"{model.ref.id} hears no sounds."
    raise RequestError(cause, await _remedy(app_state(request).models, "audio"))


async def speaking_model_of(request: Request, name: str) -> ServedModel:
    """Return the model that says the text of `request`, as `model_of`. Raises RequestError, with a remedy, where the
    model does not speak, or of several none is named."""
    model, able = await _model_for(request, name, "speech")
    if model is not None and model.file.task == "speech":
        if model.file.projector.speaks:
            return model
        reason = " ".join(model.file.projector.passed_over)
        raise RequestError(
            f"{model.ref.id} speaks only with its mmproj file, which is not there. {reason}".strip(),
            "Put it into the model's folder, or pull the model again.",
        )
    if len(able) > 1 and (model is None or not name):
        raise RequestError("The request names no model, and several here speak.", f"Name one: {', '.join(able)}.")
    cause = "No model here speaks." if model is None else f"{model.ref.id} does not speak."
    remedy = f"Ask {able[0]}, which does." if able else f"Get one that does: `localllm pull {_ONE_THAT_SPEAKS}`."
    raise RequestError(cause, remedy)


async def _model_for(request: Request, name: str, purpose: Purpose) -> tuple[ServedModel | None, list[str]]:
    """Return the model that is named or meant, None where a placeholder means none, and the ids of those in the library
    that serve `purpose`."""
    models = app_state(request).models
    model = None
    try:
        model = await model_of(request, name, purpose=purpose)
    except UnknownModelError:
        if not (models.settings.any_name and is_placeholder(name)):
            raise
    return model, [ref.id for ref in await models.catalog.installed_for(purpose)]


def unload(model: ServedModel) -> None:
    """Unload an idle model until its next use. Raises RequestError for one that is busy."""
    if model.is_busy:
        raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
    model.keep_alive.release()


def planner_warnings(model: ServedModel) -> WithWarnings:
    """Return the field of an answer with the planner's warnings of `model` and the notices of the request, if any."""
    return {"warnings": list(warnings)} if (warnings := model.record.warnings) else {}


async def turn_of(state: AppState, model: ServedModel, make: Callable[[PromptMedia], Made]) -> Made:
    """Return what `make` makes with the pictures, sounds and documents of a new turn of `model`. Raises RequestError as
    `make` does, with a remedy that names a model for what this one does not read."""
    try:
        media = PromptMedia(model.senses, state.media_fetcher, {})
        made = make(media)
        if media.unread:  # which are known now: read them, and begin again
            reading = state.documents.read(media.unread, model.record.client)
            documents = await unless_gone(model.record.receive, reading)
            made = make(PromptMedia(model.senses, state.media_fetcher, documents))
    except UnreadableError as error:
        remedy = await _remedy(state.models, error.kind)
        raise UnreadableError(error.content_type, error.senses, remedy) from None
    return made


async def prompt_with_media(
    state: AppState, model: ServedModel, body: AnyPromptBody
) -> tuple[AnyPromptBody, PromptMedia]:
    """Return `body` with the pictures and sounds of its prompts, and these. Raises RequestError as `turn_of`."""
    return await turn_of(state, model, lambda media: (body.with_markers(media, state.media_marker), media))


async def _remedy(models: ModelManager, kind: str) -> str:
    if kind not in _WORDS:
        return "Ask again in words, or send its text."
    does, do = _WORDS[kind]
    described = await models.catalog.list_with_facts()
    able = [ref.id for ref, facts in described if kind in models.senses(ref, facts).modalities]
    if able:
        return f"Ask {able[0]}, which {does}."
    name = await _smallest_that_sees() if kind == "image" else _SMALLEST_THAT_HEARS
    if name:
        return f"No model here can {do}. Get one that {does}: `localllm pull {name}`."
    return f"No model here can {do}; get one with its mmproj file."


@in_thread
def _smallest_that_sees() -> str | None:
    from app.library.hub.catalogue import Role, read_catalogue  # it plans models: numpy would come with the service

    seeing = [model for model in read_catalogue().models if Role.VISION in model.roles]
    return min(seeing, key=lambda model: model.parameters).name if seeing else None
