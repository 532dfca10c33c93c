"""OpenAI's dialect: /v1/models, /v1/chat/completions, /v1/completions.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from app.engine import request as engine_request
from app.engine.frames import Finished, Output
from app.library.resolve import ModelRef, UnknownModelError
from app.service.api.access import models_of
from app.service.api.openai_answers import AnswerShape, Kind
from app.service.api.openai_bodies import ChatBody, CompletionBody, GenerationBody
from app.service.body import read_body
from app.service.models import ServedModel
from app.service.problems import openai_error
from app.service.streaming import EventStream, JsonBytes, event, while_connected

__all__ = ["router"]

router = APIRouter(prefix="/v1")

_DONE = b"data: [DONE]\n\n"

# Makes the engine's request: it may have to render a template, which can fail and takes time.
PrepareRequest = Callable[[], Awaitable[engine_request.Request]]


@router.get("/models")
async def list_models(request: Request) -> Response:
    """Every model that a request may name."""
    models = models_of(request)
    entries = {model.ref.id: model for model in models.loaded}
    data = [_model_entry(ref, entries.get(ref.id)) for ref in await models.here()]
    return JsonBytes({"object": "list", "data": data})


@router.get("/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> Response:
    """One model, by its exact id."""
    models = models_of(request)
    here = await models.here()
    for ref in here:
        if ref.id == model_id:
            return JsonBytes(_model_entry(ref, next((model for model in models.loaded if model.ref == ref), None)))
    names = ", ".join(ref.id for ref in here)
    raise UnknownModelError(f"There is no model {model_id!r}.", f"Here are: {names}.")


@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    body = await read_body(request, ChatBody)
    models = models_of(request)
    messages = body.template_messages()
    model = await models.named(body.model or "")

    async def prepare() -> engine_request.Request:
        return body.chat_request(await models.prompt(model, messages))

    return await _respond(request, "chat", body, model, prepare)


@router.post("/completions")
async def completions(request: Request) -> Response:
    """The continuation of a text."""
    body = await read_body(request, CompletionBody)
    wanted = body.completion_request()
    model = await models_of(request).named(body.model or "")

    async def prepare() -> engine_request.Request:
        return wanted

    return await _respond(request, "text", body, model, prepare)


async def _respond(
    request: Request, kind: Kind, body: GenerationBody, model: ServedModel, prepare: PrepareRequest
) -> Response:
    if body.stream:
        return EventStream(_chunks(kind, model, prepare, with_usage=body.wants_usage), openai_error)
    return await while_connected(request, _whole(kind, model, prepare))


async def _chunks(
    kind: Kind, model: ServedModel, prepare: PrepareRequest, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    wanted = await prepare()
    shape = AnswerShape(kind=kind, request_id=wanted.request_id, model_id=model.ref.id)
    opening = shape.opening()
    async with model.engine.answer(wanted) as events:
        async for part in events:
            if opening is not None:
                yield event(opening)
                opening = None
            if isinstance(part, Output):
                yield event(shape.text(part.text))
                continue
            yield event(shape.ending(part))
            if with_usage:
                yield event(shape.usage(part))
    yield _DONE


async def _whole(kind: Kind, model: ServedModel, prepare: PrepareRequest) -> Response:
    wanted = await prepare()
    shape = AnswerShape(kind=kind, request_id=wanted.request_id, model_id=model.ref.id)
    parts: list[str] = []
    async with model.engine.answer(wanted) as events:
        async for part in events:
            if isinstance(part, Finished):
                return JsonBytes(shape.whole("".join(parts), part))
            parts.append(part.text)
    raise AssertionError("an answer ends with Finished or with an error")


def _model_entry(ref: ModelRef, model: ServedModel | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": ref.id, "object": "model", "created": 0, "owned_by": "localllm"}
    if model is not None:
        entry["created"] = model.file.created_s
        entry["meta"] = _meta(model)
    return entry


def _meta(model: ServedModel) -> dict[str, int]:
    """Return the facts that llama.cpp's clients look for (source: llama-server's /v1/models)."""
    meta = {"n_ctx_train": model.file.n_ctx_train, "size": model.file.n_bytes}
    if (ready := model.engine.status.ready) is not None:
        meta |= {"n_vocab": ready.n_vocab, "n_params": ready.n_parameters, "n_ctx": ready.n_ctx}
    return meta
