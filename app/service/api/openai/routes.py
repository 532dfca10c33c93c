"""OpenAI's dialect: /v1/models, /v1/chat/completions, /v1/completions, and Mistral's /v1/fim/completions.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from app.library.local.model_files import ModelRef
from app.service.api.app_state import model_of, models_of
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody, FimBody, OpenAiBody
from app.service.api.openai.responses import CompletionFormatter, Kind
from app.service.api.openai.schemas import (
    ChatChunk,
    ChatCompletion,
    Model,
    ModelList,
    ModelMeta,
    TextChunk,
    TextCompletion,
)
from app.service.api.recipe_defaults import completed
from app.service.generation.chat import chat_generation
from app.service.generation.generation import Answer, Generation, Prepare
from app.service.http.body import read_body
from app.service.http.errors import openai_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import EventStream, JsonResponse, event, while_connected
from app.service.infill.fim_request import fim_generation
from app.service.models.served_model import ServedModel

__all__ = ["GIVES_CHAT", "GIVES_TEXT", "router"]

router = APIRouter(prefix="/v1")

GIVES_CHAT = gives(ChatCompletion, events=ChatChunk) | refuses(404)
GIVES_TEXT = gives(TextCompletion, events=TextChunk) | refuses(404, 501)

_DONE = b"data: [DONE]\n\n"


@router.get("/models", openapi_extra=gives(ModelList))
async def list_models(request: Request) -> Response:
    """Every model that a request may name."""
    models = models_of(request)
    refs = await models.catalog.list_models()
    times_s = await asyncio.to_thread(_created_s, refs)
    data = [_model_entry(ref, time_s, models.serving(ref)) for ref, time_s in zip(refs, times_s, strict=True)]
    return JsonResponse({"object": "list", "data": data})


@router.get("/models/{model_id:path}", openapi_extra=gives(Model) | refuses(404))
async def retrieve_model(request: Request, model_id: str) -> Response:
    """One model, by any of its names."""
    models = models_of(request)
    ref = await models.find(model_id)
    (time_s,) = await asyncio.to_thread(_created_s, [ref])
    return JsonResponse(_model_entry(ref, time_s, models.serving(ref)))


@router.post("/chat/completions", openapi_extra=takes(ChatCompletionBody) | GIVES_CHAT)
async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    body = await read_body(request, ChatCompletionBody)
    body.turn()  # refuses what would be refused of any model
    model = await model_of(request, body.model or "", body.ttl)
    turn = completed(body, model.file.recipe.parameters).turn()
    return await _respond(request, "chat", body, model, lambda: chat_generation(model, turn))


@router.post("/completions", openapi_extra=takes(CompletionBody) | GIVES_TEXT)
async def completions(request: Request) -> Response:
    """The continuation of a text, or what stands between two."""
    body = await read_body(request, CompletionBody)
    body.completion_requests()  # refuses what would be refused of any model
    gap, echoed = body.gap, body.echoed()
    model = await model_of(request, body.model or "", body.ttl)
    requests = completed(body, model.file.recipe.parameters).completion_requests()

    async def prepare() -> Generation:
        return await fim_generation(model, gap, requests) if gap else Generation(requests)

    return await _respond(request, "text", body, model, prepare, echoed)


@router.post("/fim/completions", openapi_extra=takes(FimBody) | GIVES_CHAT | refuses(501))
async def fim_completions(request: Request) -> Response:
    """What stands between two texts, as Mistral has it: told like a chat's answer."""
    body = await read_body(request, FimBody)
    body.request().variants(body.n_answers())  # refuses what would be refused of any model
    model = await model_of(request, body.model or "", body.ttl)
    requests = completed(body, model.file.recipe.parameters).request().variants(body.n_answers())
    return await _respond(request, "chat", body, model, lambda: fim_generation(model, body.gap, requests))


async def _respond(
    request: Request, kind: Kind, body: OpenAiBody, model: ServedModel, prepare: Prepare, echoed: tuple[str, ...] = ()
) -> Response:
    if body.stream:
        return EventStream(_chunks(kind, model, prepare, body, echoed), openai_error)
    return await while_connected(request, _whole(kind, model, prepare, body, echoed))


async def _chunks(
    kind: Kind, model: ServedModel, prepare: Prepare, body: OpenAiBody, echoed: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    generation = await prepare()
    shape = CompletionFormatter.of(kind, generation.requests, model.ref.id, body.n_answers(), echoed)
    ended: list[Answer] = []
    is_opened = False
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if not is_opened:
                is_opened = True
                for opening in shape.openings():
                    yield event(opening)
            if delta:
                yield event(shape.text(delta, counts_tokens=bool(body.timings_per_token)))
            if answer.is_finished:
                ended.append(answer)
                yield event({**shape.ending(answer), **model.advice})
    if body.wants_usage:
        yield event(shape.usage(ended))
    yield _DONE


async def _whole(
    kind: Kind, model: ServedModel, prepare: Prepare, body: OpenAiBody, echoed: tuple[str, ...]
) -> Response:
    generation = await prepare()
    shape = CompletionFormatter.of(kind, generation.requests, model.ref.id, body.n_answers(), echoed)
    return JsonResponse({**shape.whole(await generation.answers(model)), **model.advice})


def _created_s(refs: Sequence[ModelRef]) -> list[int]:
    """Return when each model's file was written; 0 for one that is gone."""
    times_s = []
    for ref in refs:
        try:
            times_s.append(int(ref.path.stat().st_mtime))
        except OSError:
            times_s.append(0)
    return times_s


def _model_entry(ref: ModelRef, created_s: int, model: ServedModel | None) -> Model:
    entry: Model = {"id": ref.id, "object": "model", "created": created_s, "owned_by": "localllm"}
    if model is not None:
        entry["meta"] = _meta(model)
    return entry


def _meta(model: ServedModel) -> ModelMeta:
    """Return the facts that llama.cpp's clients look for (source: llama-server's /v1/models)."""
    meta: ModelMeta = {"n_ctx_train": model.file.n_ctx_train, "size": model.file.n_bytes}
    if (ready := model.status.ready) is not None:
        meta |= {"n_vocab": ready.n_vocab, "n_params": ready.n_parameters, "n_ctx": ready.n_ctx}
    return meta
