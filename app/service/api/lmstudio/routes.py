"""Routes of LM Studio's dialect: /api/v0/*. Those for text are OpenAI's; the entries of models have more fields."""

from __future__ import annotations

from typing import Literal, NotRequired

from fastapi import Request
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.library.local.resolve import ModelRef
from app.service.api.app_state import app_state
from app.service.api.openai import embeddings
from app.service.api.openai import routes as openai
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse
from app.service.models.model_catalog import FileFacts
from app.service.models.served_model import ServedModel

__all__ = ["router"]

router = Router(prefix="/api/v0")


class StudioModel(TypedDict):
    """A model that a request may name; `loaded_context_length` only of a loaded one."""

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
    """Every model that a request may name."""

    object: Literal["list"]
    data: list[StudioModel]


router.post("/chat/completions", openapi_extra=errors(404))(openai.chat_completions)
router.post("/completions", openapi_extra=errors(404, 501))(openai.completions)
router.post("/embeddings", openapi_extra=errors(404))(embeddings.embeddings)


@router.get("/models")
async def list_models(request: Request) -> JsonResponse[StudioModels]:
    """Every model that a request may name, without files that fail validation."""
    models = app_state(request).models
    data = [_entry(ref, facts, models.serving(ref)) for ref, facts in await models.catalog.list_with_facts()]
    return JsonResponse({"object": "list", "data": data})


@router.get("/models/{model_id:path}", openapi_extra=errors(404))
async def retrieve_model(request: Request, model_id: str) -> JsonResponse[StudioModel]:
    """One model."""
    models = app_state(request).models
    ref = await models.find(model_id)
    return JsonResponse(_entry(ref, await models.catalog.facts(ref), models.serving(ref)))


def _entry(ref: ModelRef, facts: FileFacts, served: ServedModel | None) -> StudioModel:
    loaded = served.status.facts if served else None
    entry: StudioModel = {
        "id": ref.id,
        "object": "model",
        "type": "embeddings" if facts.only_embeds else "llm",
        "publisher": ref.repo.partition("/")[0] or "localllm",
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
