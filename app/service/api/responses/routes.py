"""OpenAI's newer dialect: /v1/responses. Nothing is stored.

Owns this route; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from app.service.api.app_state import model_of
from app.service.api.recipe_defaults import completed
from app.service.api.responses.requests import ResponsesBody
from app.service.api.responses.responses import ResponseFormatter, ResponseStreamEvents
from app.service.api.responses.schemas import ResponseObject
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Generation
from app.service.http.body import read_body
from app.service.http.errors import openai_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, named_event, while_connected
from app.service.models.served_model import ServedModel
from quantizer.errors import UserError

__all__ = ["router"]

router = APIRouter()

_SAYS = takes(ResponsesBody) | gives(ResponseObject, events=dict[str, Any]) | refuses(404)


@router.post("/v1/responses", openapi_extra=_SAYS)
async def responses(request: Request) -> Response:
    """The next items of a conversation."""
    body = await read_body(request, ResponsesBody)
    body.turn()  # refuses what would be refused of any model
    model = await model_of(request, body.model or "")
    turn = completed(body, model.file.recipe.parameters).turn()
    if body.stream:
        return EventStream(_events(model, turn), openai_error, NAMED_EVENTS)
    return await while_connected(request, _whole(model, turn))


async def _events(model: ServedModel, turn: ChatTurn) -> AsyncGenerator[bytes, None]:
    """Yield events. A client that sees neither completion nor failure asks again, so the latter is told as such."""
    generation = await chat_generation(model, turn)
    events: ResponseStreamEvents | None = None
    try:
        async with aclosing(generation.parts(model)) as parts:
            async for answer, delta in parts:
                told: list[dict[str, Any]] = []
                if events is None:  # only now the model is loaded and there may be advice
                    events = ResponseStreamEvents(_shape(generation, model))
                    told += events.opening()
                told += events.news(delta) if delta else ()
                for item in [*told, *(events.ending(answer) if answer.is_finished else ())]:
                    yield named_event(item)
    except UserError as error:
        if events is None:
            raise
        yield named_event(events.failure(error))


async def _whole(model: ServedModel, turn: ChatTurn) -> Response:
    generation = await chat_generation(model, turn)
    (answer,) = await generation.answers(model)
    return JsonResponse(_shape(generation, model).whole(answer))


def _shape(generation: Generation, model: ServedModel) -> ResponseFormatter:
    return ResponseFormatter(generation.requests[0].request_id, model.ref.id, model.advice)
