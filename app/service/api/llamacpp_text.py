"""llama.cpp's dialect for text: /completion, /infill, /apply-template.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from app.service.api.access import model_of, models_of
from app.service.api.llamacpp_answers import AnswerShape
from app.service.api.llamacpp_bodies import InfillBody, PromptBody, TextBody
from app.service.api.llamacpp_objects import Completion, Ending, Progress, Prompt, SelectedFields, SeveralCompletions
from app.service.api.openai_bodies import ChatBody
from app.service.api.recipe_options import completed
from app.service.body import read_body
from app.service.chat import prompt_of
from app.service.generation import Generation, Prepare
from app.service.infill.gap import filling_of
from app.service.openapi import gives, refuses, takes
from app.service.problems import llamacpp_error
from app.service.served_model import ServedModel
from app.service.streaming import EventStream, JsonBytes, event, while_connected

__all__ = ["router"]

router = APIRouter()

_WRITES = refuses(404) | gives(Completion | SelectedFields | SeveralCompletions, events=Progress | Ending)


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
    return await _respond(request, body, model, lambda: filling_of(model, body.gap, requests))


@router.post("/apply-template", openapi_extra=takes(ChatBody) | gives(Prompt) | refuses(404))
async def apply_template(request: Request) -> Response:
    """Messages as the prompt that a chat would make of them."""
    body = await read_body(request, ChatBody)
    models = models_of(request)
    model = await model_of(request, body.model or "")
    prompt = await prompt_of(models, model, body.turn())
    return JsonBytes({"prompt": prompt.text})


async def _respond(request: Request, body: TextBody, model: ServedModel, prepare: Prepare) -> Response:
    if body.stream:
        return EventStream(_events(model, prepare), llamacpp_error)
    return await while_connected(request, _whole(body, model, prepare))


async def _events(model: ServedModel, prepare: Prepare) -> AsyncGenerator[bytes, None]:
    generation = await prepare()
    shape = AnswerShape(generation.requests[0], model.ref.id)
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if delta:
                yield event(shape.text(delta))
            if answer.is_finished:
                yield event({**shape.ending(answer), **model.advice})


async def _whole(body: TextBody, model: ServedModel, prepare: Prepare) -> Response:
    generation = await prepare()
    shape = AnswerShape(generation.requests[0], model.ref.id, body.response_fields)
    advice = {} if body.response_fields else model.advice  # who lists the fields wants no others
    told = [{**shape.whole(answer), **advice} for answer in await generation.answers(model)]
    return JsonBytes(told if len(told) > 1 else told[0])
