"""llama.cpp's dialect for text: /completion, /infill, /apply-template.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from app.service.api.app_state import model_of
from app.service.api.llamacpp.requests import InfillBody, LlamaCppTextBody, PromptBody
from app.service.api.llamacpp.responses import LlamaCppFormatter
from app.service.api.llamacpp.schemas import (
    ApplyTemplateResponse,
    Completion,
    CompletionChunk,
    CompletionFinalChunk,
    SelectedFields,
    SeveralCompletions,
)
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.recipe_defaults import completed
from app.service.generation.chat import prompt_of
from app.service.generation.generation import Generation, Prepare
from app.service.http.body import read_body
from app.service.http.errors import llamacpp_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import EventStream, JsonResponse, event, while_connected
from app.service.infill.fim_request import fim_generation
from app.service.models.served_model import ServedModel

__all__ = ["router"]

router = APIRouter()

_WRITES = refuses(404) | gives(
    Completion | SelectedFields | SeveralCompletions, events=CompletionChunk | CompletionFinalChunk
)


@router.post("/completion", openapi_extra=takes(PromptBody) | _WRITES)
@router.post("/completions", openapi_extra=takes(PromptBody) | _WRITES)
async def completion(request: Request) -> Response:
    """The continuation of a text."""
    body = await read_body(request, PromptBody)
    body.requests(body.one_prompt())  # refuses what would be refused of any model
    model = await model_of(request, body.model or "")
    generation = Generation(completed(body, model.file.recipe.parameters).requests(body.one_prompt()))

    async def prepare() -> Generation:
        return generation

    return await _respond(request, body, model, prepare)


@router.post("/infill", openapi_extra=takes(InfillBody) | _WRITES | refuses(501))
async def infill(request: Request) -> Response:
    """What stands between two texts; n_predict 0 computes the prompt ahead and says nothing."""
    body = await read_body(request, InfillBody)
    body.requests()  # refuses what would be refused of any model
    model = await model_of(request, body.model or "")
    requests = completed(body, model.file.recipe.parameters).requests()
    return await _respond(request, body, model, lambda: fim_generation(model, body.gap, requests))


@router.post("/apply-template", openapi_extra=takes(ChatCompletionBody) | gives(ApplyTemplateResponse) | refuses(404))
async def apply_template(request: Request) -> Response:
    """Messages as the prompt that a chat would make of them."""
    body = await read_body(request, ChatCompletionBody)
    model = await model_of(request, body.model or "")
    prompt = await prompt_of(model, body.turn())
    return JsonResponse({"prompt": prompt.text})


async def _respond(request: Request, body: LlamaCppTextBody, model: ServedModel, prepare: Prepare) -> Response:
    if body.stream:
        return EventStream(_events(model, prepare), llamacpp_error)
    return await while_connected(request, _whole(body, model, prepare))


async def _events(model: ServedModel, prepare: Prepare) -> AsyncGenerator[bytes, None]:
    generation = await prepare()
    shape = LlamaCppFormatter(generation.requests[0], model.ref.id)
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if delta:
                yield event(shape.text(delta))
            if answer.is_finished:
                yield event({**shape.ending(answer), **model.advice})


async def _whole(body: LlamaCppTextBody, model: ServedModel, prepare: Prepare) -> Response:
    generation = await prepare()
    shape = LlamaCppFormatter(generation.requests[0], model.ref.id, body.response_fields)
    advice = {} if body.response_fields else model.advice  # who lists the fields wants no others
    told = [{**shape.whole(answer), **advice} for answer in await generation.answers(model)]
    return JsonResponse(told if len(told) > 1 else told[0])
