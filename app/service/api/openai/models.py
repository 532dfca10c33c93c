"""The list of models: /v1/models as OpenAI has it with llama.cpp's `meta`, and as Anthropic has it for its clients.

Owns which form a client gets, and the facts of a model that the list has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

from fastapi import Request
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.library.local.model_files import ModelRef
from app.service.api.anthropic.models import (
    AnthropicModel,
    AnthropicModelList,
    Page,
    anthropic_model,
    capabilities,
    is_anthropic,
    model_page,
)
from app.service.api.app_state import app_state
from app.service.http.errors import AnthropicError, OpenAiError, openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse
from app.service.models.manager import ModelManager
from app.service.models.model_file import FileFacts, Modality, Senses
from app.service.models.served_model import ServedModel
from quantizer.system.errors import UserError

router = Router()


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
    """Every model that a request may name."""

    object: Literal["list"]
    data: list[Model]


def error_body(error: UserError, *, hide_paths: bool = True) -> OpenAiError | AnthropicError:
    """Return the error body of these routes, which is OpenAI's but for Anthropic's clients."""
    return openai_error(error, hide_paths=hide_paths)


@router.get("/v1/models", openapi_extra=errors(400))
@router.get("/models", openapi_extra=errors(400))
async def list_models(
    request: Request, limit: str = "", after_id: str = "", before_id: str = ""
) -> JsonResponse[ModelList | AnthropicModelList]:
    """Every model that a request may name; for Anthropic's clients a page of them."""
    models = app_state(request).models
    wants_page = is_anthropic(request.headers)
    page = Page.of_query({"limit": limit, "after_id": after_id, "before_id": before_id}) if wants_page else None
    refs = await models.catalog.list_models()
    entries = await _listed(models, refs)
    if page is not None:
        return JsonResponse(model_page([_anthropic_entry(entry) for entry in entries], page))
    return JsonResponse({"object": "list", "data": [_model_entry(entry) for entry in entries]})


@router.get("/v1/models/{model_id:path}", openapi_extra=errors(404))
@router.get("/models/{model_id:path}", openapi_extra=errors(404))
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
    times_s = await asyncio.to_thread(_created_s, refs)
    facts = dict(await models.catalog.with_facts(refs))
    return [
        _Listed(ref, time_s, facts.get(ref), models.serving(ref)) for ref, time_s in zip(refs, times_s, strict=True)
    ]


def _created_s(refs: Sequence[ModelRef]) -> list[int]:
    """Return the time at which each model's file was written; 0 for a missing one."""
    times_s = []
    for ref in refs:
        try:
            times_s.append(int(ref.path.stat().st_mtime))
        except OSError:
            times_s.append(0)
    return times_s


def _model_entry(listed: _Listed) -> Model:
    entry: Model = {
        "id": listed.ref.id,
        "object": "model",
        "created": listed.created_s,
        "owned_by": "localllm",
    }
    if (senses := listed.senses) is not None:
        entry["architecture"] = {"input_modalities": senses.modalities, "output_modalities": ["text"]}
    if listed.model is not None:
        entry["meta"] = _meta(listed.model)
    return entry


def _meta(model: ServedModel) -> ModelMeta:
    """Return the facts that llama.cpp's clients read (source: llama-server's /v1/models)."""
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
