"""Routes of Anthropic's dialect: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from pydantic import NonNegativeInt
from starlette.requests import Request
from typing_extensions import TypedDict

from app.protocol.errors import ContextOverflowError, RequestError
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.anthropic.responses import Event, MessageFormatter, MessageResponse, MessageStreamEvents
from app.service.api.app_state import app_state, model_of, planner_warnings, turn_of
from app.service.api.text_request import with_model_defaults
from app.service.generation.chat import ChatTurn, chat_generation, n_prompt_tokens
from app.service.generation.media import PromptMedia
from app.service.http.errors import anthropic_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected
from app.service.models.served_model import ServedModel

router = Router(prefix="/v1/messages")


class TokenCount(TypedDict):
    input_tokens: NonNegativeInt


@router.post("", refusals=errors(404))
async def messages(request: Request, body: MessagesBody) -> JsonResponse[MessageResponse] | EventStream[dict[str, Any]]:
    """The next message of a conversation."""
    model = await model_of(request, body.model or "")
    state, asked = app_state(request), with_model_defaults(body, model.file)

    def make(media: PromptMedia) -> ChatTurn:
        asked.leave_out_refused(media, state.refused)
        asked.refuse_unreadable_question(media, state.refused)
        return asked.turn(media)

    turn = await turn_of(state, model, make)

    @contextmanager
    def remembering_refused() -> Iterator[None]:
        """Remember pictures that the engine cannot read: Claude Code sends them again with each later question."""
        try:
            yield
        except ContextOverflowError:
            raise
        except RequestError:
            if turn.media.markers:
                asked.remember_refused(state.refused)
            raise

    async def streamed() -> AsyncGenerator[Event, None]:
        with remembering_refused():
            async with aclosing(_answered(model, turn)) as events:
                async for event in events:
                    yield event

    async def whole() -> MessageResponse:
        with remembering_refused():
            generation = await chat_generation(model, turn)
            (answer,) = await generation.answers(model)
        formatter = MessageFormatter(generation.requests[0].request_id, model.ref.id, planner_warnings(model))
        return formatter.whole(answer)

    if body.stream:
        return EventStream(streamed(), anthropic_error, NAMED_EVENTS)
    return await while_connected(request, whole())


@router.post("/count_tokens", refusals=errors(404))
async def count_tokens(request: Request, body: MessagesBody) -> JsonResponse[TokenCount]:
    """The number of tokens that the prompt of a request would have."""
    model = await model_of(request, body.model or "")
    turn = await turn_of(app_state(request), model, body.turn)

    async def count() -> TokenCount:
        return {"input_tokens": await n_prompt_tokens(model, turn)}

    return await while_connected(request, count())


async def _answered(model: ServedModel, turn: ChatTurn) -> AsyncGenerator[Event, None]:
    generation = await chat_generation(model, turn)
    (sent,) = generation.requests
    n_sent_tokens = await model.n_tokens(sent.prompt, add_special=sent.add_special, media=sent.media)
    events: MessageStreamEvents | None = None
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if events is None:  # only now the model is loaded and there may be warnings
                events = MessageStreamEvents(MessageFormatter(sent.request_id, model.ref.id, planner_warnings(model)))
                yield events.opening(n_sent_tokens)
            for event in events.of_delta(delta) if delta else ():
                yield event
            for event in events.ending(answer) if answer.is_finished else ():
                yield event
