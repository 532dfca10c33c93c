"""The list of models: /v1/models as OpenAI has it with llama.cpp's `meta`, and as Anthropic has it for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NotRequired

from pydantic import NonNegativeInt
from starlette.requests import Request
from typing_extensions import TypedDict

from app.common.answer_text import reasoning_tags_of
from app.library.local.model_files import ModelRef
from app.protocol.errors import RequestError
from app.service.api.app_state import app_state
from app.service.api.openai.codex import CodexModel, codex_model
from app.service.generation.thinking import Thinking
from app.service.http.errors import AnthropicError, OpenAiError, openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse
from app.service.models.manager import ModelManager
from app.service.models.model_file import FileFacts, Modality, Senses
from app.service.models.served_model import ServedModel
from quantizer.system.errors import UserError

router = Router()

VERSION_HEADER = "anthropic-version"  # every client of theirs sends it, and no other
DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class Supported(TypedDict):
    supported: bool


class EffortCapability(TypedDict):
    supported: bool
    low: Supported
    medium: Supported
    high: Supported
    max: Supported


class ThinkingTypes(TypedDict):
    adaptive: Supported
    between_tools: Supported
    disabled: Supported
    enabled: Supported


class ThinkingCapability(TypedDict):
    supported: bool
    types: ThinkingTypes


class ServerTools(TypedDict):
    """The tools that the service itself would run."""

    supported: bool
    code_execution: Supported
    web_search: Supported


class Capabilities(TypedDict):
    """What a model is able to do (source: `ModelCapabilities` of Anthropic's SDK for Python, 2026)."""

    batch: Supported
    citations: Supported
    code_execution: Supported
    context_management: Supported
    effort: EffortCapability
    image_input: Supported
    pdf_input: Supported
    server_tools: ServerTools
    structured_outputs: Supported
    thinking: ThinkingCapability


class AnthropicModel(TypedDict):
    """A model that a request may name (source: `ModelInfo` of Anthropic's SDK for Python, 2026). `max_input_tokens` is
    the longest context of a model that has an engine, `capabilities` are those of a valid file."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NonNegativeInt | None
    max_tokens: NonNegativeInt | None
    capabilities: Capabilities | None
    deprecated_at: None
    retires_at: None
    line: None


class AnthropicModelList(TypedDict):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class Page:
    """The models right after `after_id`, or right before `before_id`, at most `limit`."""

    limit: int = DEFAULT_LIMIT
    after_id: str = ""
    before_id: str = ""

    @staticmethod
    def of_query(query: Mapping[str, str]) -> Page:
        """Return the page that a query asks for. Raises RequestError for a limit out of range."""
        text = query.get("limit", "") or str(DEFAULT_LIMIT)
        limit = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0
        if not 1 <= limit <= MAX_LIMIT:
            raise RequestError(f"limit is {text[:20]!r}.", f"Give a count from 1 to {MAX_LIMIT}.")
        return Page(limit, query.get("after_id", ""), query.get("before_id", ""))


def is_anthropic(headers: Mapping[str, str]) -> bool:
    return VERSION_HEADER in headers


def capabilities(chat_template: str, *, sees: bool) -> Capabilities:
    """Return what a model with this chat template is able to do."""
    no, yes = Supported(supported=False), Supported(supported=True)
    thinks = reasoning_tags_of(chat_template, "").has_reasoning
    low, high = (Thinking(effort=effort).for_template(chat_template) for effort in ("low", "high"))
    level = Supported(supported=low != high)
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**level, "low": level, "medium": level, "high": level, "max": level},
        "image_input": Supported(supported=sees),
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {
            "supported": thinks,
            "types": {"adaptive": yes, "between_tools": yes, "disabled": yes, "enabled": yes},
        },
    }


def anthropic_model(
    model_id: str, created_s: int, n_ctx: int | None, able: Capabilities | None = None
) -> AnthropicModel:
    return {
        "type": "model",
        "id": model_id,
        "display_name": model_id,
        "created_at": datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
        "capabilities": able,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def model_page(models: Sequence[AnthropicModel], page: Page) -> AnthropicModelList:
    """Return a page of `models`. Raises RequestError for a cursor that is none of them."""
    ids = [model["id"] for model in models]
    if page.before_id:
        end = _index(ids, page.before_id)
        start = max(0, end - page.limit)
        has_more = start > 0
    else:
        start = _index(ids, page.after_id) + 1 if page.after_id else 0
        end = min(len(ids), start + page.limit)
        has_more = end < len(ids)
    data = list(models[start:end])
    edges = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "first_id": edges[0], "last_id": edges[1], "has_more": has_more}


def _index(ids: Sequence[str], cursor: str) -> int:
    if cursor not in ids:
        raise RequestError(f"There is no model {cursor[:100]!r} in the list.", "Use an id of the page before.")
    return ids.index(cursor)


class ModelMeta(TypedDict):
    """The facts that llama.cpp's clients read; the last three only of a model that is ready."""

    n_ctx_train: NonNegativeInt
    size: NonNegativeInt
    n_vocab: NotRequired[NonNegativeInt]
    n_params: NotRequired[NonNegativeInt]
    n_ctx: NotRequired[NonNegativeInt]


class ModelArchitecture(TypedDict):
    """What a model reads and writes (llama-server's and OpenRouter's field)."""

    input_modalities: list[Modality]
    output_modalities: list[Literal["text"]]


class Model(TypedDict):
    """A model that a request may name; `meta` only of one that has an engine, `architecture` of a valid file."""

    id: str
    object: Literal["model"]
    created: NonNegativeInt
    owned_by: Literal["localllm"]
    architecture: NotRequired[ModelArchitecture]
    meta: NotRequired[ModelMeta]


class ModelList(TypedDict):
    """The models; `models` are the same for Codex, which asks with its version."""

    object: Literal["list"]
    data: list[Model]
    models: NotRequired[list[CodexModel]]


def error_body(error: UserError, *, hide_paths: bool = True) -> OpenAiError | AnthropicError:
    """Return the error body of these routes, which is OpenAI's but for Anthropic's clients."""
    return openai_error(error, hide_paths=hide_paths)


@router.get("/v1/models", refusals=errors(400))
@router.get("/models", refusals=errors(400))
async def list_models(
    request: Request, limit: str = "", after_id: str = "", before_id: str = "", client_version: str = ""
) -> JsonResponse[ModelList | AnthropicModelList]:
    """Every model that a request may name; for Anthropic's clients a page of them."""
    models = app_state(request).models
    wants_page = is_anthropic(request.headers)
    page = Page.of_query({"limit": limit, "after_id": after_id, "before_id": before_id}) if wants_page else None
    refs = await models.catalog.list_models()
    entries = await _listed(models, refs)
    if page is not None:
        return JsonResponse(model_page([_anthropic_entry(entry) for entry in entries], page))
    listed: ModelList = {"object": "list", "data": [_model_entry(entry) for entry in entries]}
    if client_version:
        valid = [entry for entry in entries if entry.facts is not None and not entry.facts.only_embeds]
        listed["models"] = [_codex_entry(entry, place, models.settings.ctx) for place, entry in enumerate(valid, 1)]
    return JsonResponse(listed)


@router.get("/v1/models/{model_id:path}", refusals=errors(404))
@router.get("/models/{model_id:path}", refusals=errors(404))
async def retrieve_model(request: Request, model_id: str) -> JsonResponse[Model | AnthropicModel]:
    """One model, by any of its names."""
    models = app_state(request).models
    ref = await models.find(model_id)
    (entry,) = await _listed(models, [ref])
    return JsonResponse(_anthropic_entry(entry) if is_anthropic(request.headers) else _model_entry(entry))


@dataclass(frozen=True, slots=True)
class _Listed:
    """A model of the list: `facts` are None for an invalid file, `model` for one without an engine."""

    ref: ModelRef
    created_s: int
    facts: FileFacts | None
    model: ServedModel | None

    @property
    def senses(self) -> Senses | None:
        if self.model is not None:
            return self.model.senses
        return None if self.facts is None else self.facts.senses


async def _listed(models: ModelManager, refs: Sequence[ModelRef]) -> list[_Listed]:
    def created_s(ref: ModelRef) -> int:
        try:
            return int(ref.path.stat().st_mtime)
        except OSError:
            return 0  # the file is missing

    times_s = await asyncio.to_thread(lambda: [created_s(ref) for ref in refs])
    facts = dict(await models.catalog.with_facts(refs))
    return [
        _Listed(ref, time_s, facts.get(ref), models.serving(ref)) for ref, time_s in zip(refs, times_s, strict=True)
    ]


def _model_entry(listed: _Listed) -> Model:
    entry: Model = {"id": listed.ref.id, "object": "model", "created": listed.created_s, "owned_by": "localllm"}
    if (senses := listed.senses) is not None:
        entry["architecture"] = {"input_modalities": senses.modalities, "output_modalities": ["text"]}
    if listed.model is not None:
        entry["meta"] = _meta(listed.model)
    return entry


def _meta(model: ServedModel) -> ModelMeta:
    meta: ModelMeta = {"n_ctx_train": model.file.n_ctx_train, "size": model.file.n_bytes}
    if (ready := model.status.facts) is not None:
        meta |= {"n_vocab": ready.n_vocab, "n_params": ready.n_parameters, "n_ctx": ready.n_ctx}
    return meta


def _anthropic_entry(listed: _Listed) -> AnthropicModel:
    meta = None if listed.model is None else _meta(listed.model)
    n_ctx = None if meta is None else meta.get("n_ctx", meta["n_ctx_train"])
    template = None if listed.facts is None else listed.facts.chat_template
    senses = listed.senses
    able = None if senses is None or template is None else capabilities(template, sees=senses.sees)
    return anthropic_model(listed.ref.id, listed.created_s, n_ctx, able)


def _codex_entry(listed: _Listed, place: int, n_ctx_set: int) -> CodexModel:
    """Return the entry of a valid text model. Its context grows up to what it was trained on, or the setting `ctx`."""
    assert listed.facts is not None, "the model is valid"
    n_ctx = min(filter(None, (n_ctx_set, listed.facts.info.n_ctx_train)), default=0)
    if listed.model is not None and not listed.model.can_grow and (ready := listed.model.status.facts) is not None:
        n_ctx = ready.n_ctx
    modalities = [] if listed.senses is None else listed.senses.modalities
    thinks = capabilities(listed.facts.chat_template, sees=False)["thinking"]["supported"]
    return codex_model(listed.ref.id, place, n_ctx, modalities, has_efforts=thinks)
