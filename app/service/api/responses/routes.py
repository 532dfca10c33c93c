"""The route of OpenAI's Responses API: /v1/responses. Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request

from app.service.api.app_state import model_of, planner_warnings
from app.service.api.responses.requests import ResponsesBody
from app.service.api.responses.responses import Event, ResponseFormatter, ResponseObject, ResponseStreamEvents
from app.service.api.text_request import with_recipe_defaults
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Generation
from app.service.http.errors import openai_error
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected
from app.service.models.served_model import ServedModel
from quantizer.errors import UserError

__all__ = ["router"]

router = Router()


@router.post("/v1/responses", openapi_extra=errors(404))
@router.post("/responses", openapi_extra=errors(404))
async def responses(
    request: Request, body: ResponsesBody
) -> JsonResponse[ResponseObject] | EventStream[dict[str, Any]]:
    """The next items of a conversation."""
    model = await model_of(request, body.model or "")
    turn = with_recipe_defaults(body, model.file.recipe).turn()
    if body.stream:
        return EventStream(_events(model, turn), openai_error, NAMED_EVENTS)
    return await while_connected(request, _whole(model, turn))


async def _events(model: ServedModel, turn: ChatTurn) -> AsyncGenerator[Event, None]:
    """Yield events. A client that sees neither completion nor failure retries, so a failure is an event of its own."""
    generation = await chat_generation(model, turn)
    events: ResponseStreamEvents | None = None
    try:
        async with aclosing(generation.parts(model)) as parts:
            async for answer, delta in parts:
                if events is None:  # only now the model is loaded and there may be warnings
                    events = ResponseStreamEvents(_formatter(generation, model))
                    for item in events.opening():
                        yield item
                for item in events.of_delta(delta) if delta else ():
                    yield item
                for item in events.ending(answer) if answer.is_finished else ():
                    yield item
    except UserError as error:
        if events is None:
            raise
        yield events.failure(error)


async def _whole(model: ServedModel, turn: ChatTurn) -> JsonResponse[ResponseObject]:
    generation = await chat_generation(model, turn)
    (answer,) = await generation.answers(model)
    return JsonResponse(_formatter(generation, model).whole(answer))


def _formatter(generation: Generation, model: ServedModel) -> ResponseFormatter:
    return ResponseFormatter(generation.requests[0].request_id, model.ref.id, planner_warnings(model))
