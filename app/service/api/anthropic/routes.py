"""Anthropic's dialect: /v1/messages and /v1/messages/count_tokens.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from app.service.api.anthropic.requests import MessagesBody
from app.service.api.anthropic.responses import MessageFormatter, MessageStreamEvents
from app.service.api.anthropic.schemas import MessageResponse, TokenCount
from app.service.api.app_state import model_of
from app.service.api.recipe_defaults import completed
from app.service.generation.chat import ChatTurn, chat_generation, prompt_of
from app.service.http.body import read_body
from app.service.http.errors import anthropic_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, named_event, while_connected
from app.service.models.served_model import ServedModel

__all__ = ["router"]

router = APIRouter(prefix="/v1/messages")


@router.post("", openapi_extra=takes(MessagesBody) | gives(MessageResponse, events=dict[str, Any]) | refuses(404))
async def messages(request: Request) -> Response:
    """The next message of a conversation."""
    body = await read_body(request, MessagesBody)
    body.turn()  # refuses what would be refused of any model
    model = await model_of(request, body.model or "")
    turn = completed(body, model.file.recipe.parameters).turn()
    if body.stream:
        return EventStream(_events(model, turn), anthropic_error, NAMED_EVENTS)
    return await while_connected(request, _whole(model, turn))


@router.post("/count_tokens", openapi_extra=takes(MessagesBody) | gives(TokenCount) | refuses(404))
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a request would have."""
    body = await read_body(request, MessagesBody)
    turn = body.turn()
    model = await model_of(request, body.model or "")

    async def answer() -> Response:
        prompt = await prompt_of(model, turn)
        return JsonResponse({"input_tokens": await model.n_tokens(prompt.text, add_special=prompt.add_special)})

    return await while_connected(request, answer())


async def _events(model: ServedModel, turn: ChatTurn) -> AsyncGenerator[bytes, None]:
    generation = await chat_generation(model, turn)
    (wanted,) = generation.requests
    n_prompt_tokens = await model.n_tokens(wanted.prompt, add_special=wanted.add_special)
    events = MessageStreamEvents(MessageFormatter(wanted.request_id, model.ref.id, model.advice))
    is_opened = False
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if not is_opened:
                is_opened = True
                yield named_event(events.opening(n_prompt_tokens))
            for news in events.news(delta) if delta else ():
                yield named_event(news)
            if answer.is_finished:
                for last in events.ending(answer):
                    yield named_event(last)


async def _whole(model: ServedModel, turn: ChatTurn) -> Response:
    generation = await chat_generation(model, turn)
    (answer,) = await generation.answers(model)
    shape = MessageFormatter(generation.requests[0].request_id, model.ref.id, model.advice)
    return JsonResponse(shape.whole(answer))
