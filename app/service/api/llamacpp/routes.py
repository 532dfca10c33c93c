"""Routes of llama-server's dialect for text: /completion, /infill, /apply-template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from fastapi import Request
from typing_extensions import TypedDict

from app.service.api.app_state import app_state, model_of, planner_warnings
from app.service.api.llamacpp.requests import InfillBody, LlamaCppTextBody, PromptBody
from app.service.api.llamacpp.responses import (
    Completion,
    CompletionChunk,
    LlamaCppFormatter,
    SelectedFields,
    SeveralCompletions,
)
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.prompt_forms import with_token_ids
from app.service.api.text_request import with_recipe_defaults
from app.service.api.turns import prompt_with_media, turn_of
from app.service.generation.chat import prompt_of
from app.service.generation.generation import Answer, Generation, Prepare
from app.service.http.errors import llamacpp_error
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import EventStream, JsonResponse, while_connected
from app.service.infill.fim_request import fim_generation
from app.service.models.served_model import ServedModel

router = Router()


class ApplyTemplateResponse(TypedDict):
    """Messages as the prompt that a chat would make of them."""

    prompt: str


TextResponse: TypeAlias = (
    JsonResponse[Completion | SelectedFields | SeveralCompletions]
    | EventStream[CompletionChunk | Completion | SelectedFields]
)


@router.post("/completion", openapi_extra=errors(404))
@router.post("/completions", openapi_extra=errors(404))
async def completion(request: Request, body: PromptBody) -> TextResponse:
    """The continuation of a text, or of each of several."""
    model = await model_of(request, body.model or "")
    body, media = await prompt_with_media(app_state(request), model, body)
    body = await with_token_ids(body, model)
    requests = with_recipe_defaults(body, model.file.recipe).requests(*body.prompts())

    async def prepare() -> Generation:
        return Generation(tuple([await media.in_request(request) for request in requests]))

    return await _respond(request, body, model, prepare)


@router.post("/infill", openapi_extra=errors(404, 501))
async def infill(request: Request, body: InfillBody) -> TextResponse:
    """The text between two; with n_predict 0 the prompt is only computed ahead."""
    model = await model_of(request, body.model or "")
    requests = with_recipe_defaults(body, model.file.recipe).requests("")
    return await _respond(request, body, model, lambda: fim_generation(model, body.fim_request, requests))


@router.post("/apply-template", openapi_extra=errors(404))
async def apply_template(request: Request, body: ChatCompletionBody) -> JsonResponse[ApplyTemplateResponse]:
    """Messages as the prompt that a chat would make of them."""
    model = await model_of(request, body.model or "")
    turn = await turn_of(app_state(request), model, body.turn)
    prompt = await prompt_of(model, turn)
    return JsonResponse({"prompt": turn.media.with_public_markers(prompt.text, app_state(request).media_marker)})


async def _respond(request: Request, body: LlamaCppTextBody, model: ServedModel, prepare: Prepare) -> TextResponse:
    marker = app_state(request).media_marker
    if body.stream:
        return EventStream(_chunks(body, model, prepare, marker), llamacpp_error)
    return await while_connected(request, _whole(body, model, prepare, marker))


async def _chunks(
    body: LlamaCppTextBody, model: ServedModel, prepare: Prepare, marker: str
) -> AsyncGenerator[CompletionChunk | Completion | SelectedFields, None]:
    generation = await prepare()
    formatter = LlamaCppFormatter(generation.requests, model.ref.id, body.response_fields)
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if delta:
                yield formatter.chunk(delta)
            if answer.is_finished:
                prompt = await _prompt_text(formatter, answer, model, marker)
                yield formatter.final_chunk(answer, prompt, planner_warnings(model))


async def _whole(
    body: LlamaCppTextBody, model: ServedModel, prepare: Prepare, marker: str
) -> JsonResponse[Completion | SelectedFields | SeveralCompletions]:
    generation = await prepare()
    formatter = LlamaCppFormatter(generation.requests, model.ref.id, body.response_fields)
    completions = [
        formatter.whole(answer, await _prompt_text(formatter, answer, model, marker), planner_warnings(model))
        for answer in await generation.answers(model)
    ]
    return JsonResponse(completions if len(completions) > 1 else completions[0])


async def _prompt_text(formatter: LlamaCppFormatter, answer: Answer, model: ServedModel, marker: str) -> str:
    """Return the prompt of an answer as text with a `marker` for each medium, "" where the objects do not have it."""
    request = formatter.requests[answer.index]
    prompt = request.prompt
    if isinstance(prompt, str):
        for medium in request.media:
            prompt = prompt.replace(medium.marker, marker)
        return prompt
    if not formatter.shows_prompt:
        return ""
    with model.in_use() as engine:
        return await engine.detokenize(prompt)
