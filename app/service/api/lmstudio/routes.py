"""Routes of LM Studio's first REST API: /api/v0/*. Those for text are OpenAI's, and whole answers have more fields.

Source: LM Studio's documentation of its REST API v0, version 0.4 (endpoints).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired

from pydantic import NonNegativeFloat, NonNegativeInt
from starlette.requests import Request
from typing_extensions import TypedDict

from app import __version__
from app.library.local.model_files import ModelRef
from app.service.api.app_state import app_state
from app.service.api.lmstudio.model_routes import publisher_of
from app.service.api.openai import routes as openai
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.api.openai.responses import ChatChoice, ChatChunk, Completion, TextChoice, TextChunk
from app.service.http.routing import Router, errors
from app.service.http.streaming import EventStream, JsonResponse
from app.service.models.model_file import FileFacts
from app.service.models.served_model import ServedModel

router = Router(prefix="/api/v0")


class StudioModel(TypedDict):
    """A model that a request may name; `loaded_context_length` only of a loaded one."""

    id: str
    object: Literal["model"]
    type: Literal["embeddings", "llm", "vlm"]
    publisher: str
    arch: str
    compatibility_type: Literal["gguf"]
    quantization: str
    state: Literal["loaded", "not-loaded"]
    max_context_length: NonNegativeInt
    loaded_context_length: NotRequired[NonNegativeInt]
    capabilities: list[Literal["tool_use"]]


class StudioModels(TypedDict):
    object: Literal["list"]
    data: list[StudioModel]


class StudioStats(TypedDict):
    """The speed of an answer, in seconds, and why it ended."""

    tokens_per_second: NonNegativeFloat
    time_to_first_token: NonNegativeFloat
    generation_time: NonNegativeFloat
    stop_reason: Literal["eosFound", "maxPredictedTokensReached", "toolCalls"]


class StudioModelInfo(TypedDict):
    arch: str
    quant: str
    format: Literal["gguf"]
    context_length: NonNegativeInt


class StudioRuntime(TypedDict):
    name: Literal["localllm"]
    version: str
    supported_formats: list[Literal["gguf"]]


class StudioFields(TypedDict):
    """What LM Studio adds to OpenAI's objects."""

    stats: StudioStats
    model_info: StudioModelInfo
    runtime: StudioRuntime


class StudioChatCompletion(Completion[ChatChoice], StudioFields):
    """A chat completion."""


class StudioTextCompletion(Completion[TextChoice], StudioFields):
    """A text completion."""


_RUNTIME: StudioRuntime = {"name": "localllm", "version": __version__, "supported_formats": ["gguf"]}
_STOP_REASONS: Mapping[str | None, Literal["maxPredictedTokensReached", "toolCalls"]] = {
    "length": "maxPredictedTokensReached",
    "tool_calls": "toolCalls",
}


@router.post("/chat/completions", refusals=errors(404))
async def chat_completions(
    request: Request, body: ChatCompletionBody
) -> JsonResponse[StudioChatCompletion] | EventStream[ChatChunk]:
    """The next message of a conversation."""
    response = await openai.chat_completions(request, body)
    if not isinstance(response, JsonResponse):
        return response
    return JsonResponse({**response.content, **await _studio_fields(request, response.content)})


@router.post("/completions", refusals=errors(404))
async def completions(
    request: Request, body: CompletionBody
) -> JsonResponse[StudioTextCompletion] | EventStream[TextChunk]:
    """The continuation of a text, or the text between two."""
    response = await openai.completions(request, body)
    if not isinstance(response, JsonResponse):
        return response
    return JsonResponse({**response.content, **await _studio_fields(request, response.content)})


router.post("/embeddings", refusals=errors(404))(openai.embeddings)


@router.get("/models")
async def list_models(request: Request) -> JsonResponse[StudioModels]:
    """Every model that a request may name, without files that fail validation."""
    models = app_state(request).models
    data = [_entry(ref, facts, models.serving(ref)) for ref, facts in await models.catalog.list_with_facts()]
    return JsonResponse({"object": "list", "data": data})


@router.get("/models/{model_id:path}", refusals=errors(404))
async def retrieve_model(request: Request, model_id: str) -> JsonResponse[StudioModel]:
    """One model."""
    models = app_state(request).models
    ref = await models.find(model_id)
    return JsonResponse(_entry(ref, await models.catalog.facts(ref), models.serving(ref)))


async def _studio_fields(request: Request, answer: Completion[ChatChoice] | Completion[TextChoice]) -> StudioFields:
    models = app_state(request).models
    model = await models.named(answer["model"])
    facts, ready = await models.catalog.facts(model.ref), model.engine.status.facts
    timings, reason = answer["timings"], answer["choices"][0]["finish_reason"]
    return {
        "stats": {
            "tokens_per_second": timings["predicted_per_second"],
            "time_to_first_token": timings["time_to_first_token_ms"] / 1000,
            "generation_time": timings["predicted_ms"] / 1000,
            "stop_reason": _STOP_REASONS.get(reason, "eosFound"),
        },
        "model_info": {
            "arch": facts.info.architecture,
            "quant": facts.info.file_type,
            "format": "gguf",
            "context_length": ready.n_ctx if ready else facts.info.n_ctx_train,
        },
        "runtime": _RUNTIME,
    }


def _entry(ref: ModelRef, facts: FileFacts, served: ServedModel | None) -> StudioModel:
    loaded = served.status.facts if served else None
    senses = facts.senses if served is None else served.senses
    entry: StudioModel = {
        "id": ref.id,
        "object": "model",
        "type": "embeddings" if facts.only_embeds else "vlm" if senses.sees else "llm",
        "publisher": publisher_of(ref),
        "arch": facts.info.architecture,
        "compatibility_type": "gguf",
        "quantization": facts.info.file_type,
        "state": "not-loaded" if loaded is None else "loaded",
        "max_context_length": facts.info.n_ctx_train,
        "capabilities": ["tool_use"] if facts.chat_template else [],
    }
    if loaded is not None:
        entry["loaded_context_length"] = loaded.n_ctx
    return entry
