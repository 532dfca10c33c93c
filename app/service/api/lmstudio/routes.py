"""LM Studio's dialect: /api/v0/*. Its routes for text are OpenAI's; its models say more.

Owns the fields of these models. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from fastapi import APIRouter, Request, Response
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.library.local.resolve import ModelRef
from app.service.api.app_state import models_of
from app.service.api.openai import embeddings, routes
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse
from app.service.models.model_catalog import FileFacts
from app.service.models.served_model import ServedModel

__all__ = ["router"]

router = APIRouter(prefix="/api/v0")


class StudioModel(TypedDict):
    """A model that a request may name; `loaded_context_length` comes with one that is loaded."""

    id: str
    object: Literal["model"]
    type: Literal["embeddings", "llm"]
    publisher: str
    arch: str
    compatibility_type: Literal["gguf"]
    quantization: str
    state: Literal["loaded", "not-loaded"]
    max_context_length: NonNegativeInt
    loaded_context_length: NotRequired[NonNegativeInt]
    capabilities: list[Literal["tool_use"]]


class StudioModels(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[StudioModel]


for path, answer, told in (
    ("/chat/completions", routes.chat_completions, takes(ChatCompletionBody) | routes.GIVES_CHAT),
    ("/completions", routes.completions, takes(CompletionBody) | routes.GIVES_TEXT),
    ("/embeddings", embeddings.embeddings, embeddings.EMBEDS),
):
    router.add_api_route(path, answer, methods=["POST"], openapi_extra=told)


@router.get("/models", openapi_extra=gives(StudioModels))
async def list_models(request: Request) -> Response:
    """Every model that a request may name; files that the gate refuses are none."""
    models = models_of(request)
    data = [_entry(ref, facts, models.serving(ref)) for ref, facts in await models.catalog.list_with_facts()]
    return JsonResponse({"object": "list", "data": data})


@router.get("/models/{model_id:path}", openapi_extra=gives(StudioModel) | refuses(404))
async def retrieve_model(request: Request, model_id: str) -> Response:
    """One model."""
    models = models_of(request)
    ref = await models.find(model_id)
    return JsonResponse(_entry(ref, await models.catalog.facts(ref), models.serving(ref)))


def _entry(ref: ModelRef, facts: FileFacts, served: ServedModel | None) -> dict[str, Any]:
    return {
        "id": ref.id,
        "object": "model",
        "type": "embeddings" if facts.only_embeds else "llm",
        "publisher": ref.repo.partition("/")[0] or "localllm",
        "arch": facts.info.architecture,
        "compatibility_type": "gguf",
        "quantization": facts.info.file_type,
        **_context(facts, served),
        "capabilities": ["tool_use"] if facts.chat_template else [],
    }


def _context(facts: FileFacts, served: ServedModel | None) -> dict[str, Any]:
    ready = served.status.ready if served else None
    trained = {"max_context_length": facts.info.n_ctx_train}
    if ready is None:
        return {"state": "not-loaded", **trained}
    return {"state": "loaded", **trained, "loaded_context_length": ready.n_ctx}
