"""Routes of Anthropic's dialect: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from pydantic import NonNegativeInt
from starlette.requests import Request
from typing_extensions import TypedDict

from app.protocol.errors import ContextOverflowError, RequestError
from app.service.api.anthropic.requests import CountTokensBody, MessagesBody
from app.service.api.anthropic.responses import (
    Event,
    MessageFormatter,
    MessageResponse,
    MessageStreamEvents,
    blocks,
)
from app.service.api.anthropic.threads import continuing, keep, whole_conversation
from app.service.api.app_state import RefusedContent, app_state, model_of, planner_warnings, responses_of, turn_of
from app.service.api.text_request import with_model_defaults
from app.service.generation.chat import ChatTurn, chat_generation, n_prompt_tokens
from app.service.generation.compaction import NothingToSummarizeError, compaction_turn, summary_of
from app.service.generation.generation import Answer
from app.service.generation.media import PromptMedia
from app.service.http.access_log import record_of
from app.service.http.errors import RefusedError, anthropic_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected
from app.service.models.served_model import ServedModel

router = Router(prefix="/v1/messages")


class TokenCount(TypedDict):
    input_tokens: NonNegativeInt


@contextmanager
def remembering_refused(body: MessagesBody, turn: ChatTurn, refused: RefusedContent) -> Iterator[None]:
    """Remember pictures that the engine cannot read: Claude Code sends them again with each later question."""
    try:
        yield
    except ContextOverflowError:
        raise
    except RequestError:
        if turn.media.markers:
            body.remember_refused(refused)
        raise


@router.post("", refusals=errors(404))
async def messages(request: Request, body: MessagesBody) -> JsonResponse[MessageResponse] | EventStream[dict[str, Any]]:
    """The next message of a conversation."""
    state = app_state(request)
    store, record = responses_of(request), record_of(request.scope)
    record.until_end.enter_context(continuing(state.open_threads, body, record.owner))
    body = await whole_conversation(store, body)
    model = await model_of(request, body.model or "")
    asked = with_model_defaults(body, model.file)

    def make(media: PromptMedia) -> ChatTurn:
        asked.leave_out_refused(media, state.refused)
        asked.refuse_unreadable_question(media, state.refused)
        return asked.turn(media)

    turn = await turn_of(state, model, make)
    if body.compaction is not None:
        return await _compacted(request, model, body, turn)

    async def kept(formatter: MessageFormatter, answer: Answer) -> None:
        await keep(store, body, formatter.message_id, blocks(answer))

    async def streamed() -> AsyncGenerator[Event, None]:
        with remembering_refused(asked, turn, state.refused):
            async with aclosing(_answered(model, turn, kept)) as events:
                async for event in events:
                    yield event

    async def whole() -> MessageResponse:
        with remembering_refused(asked, turn, state.refused):
            generation = await chat_generation(model, turn)
            (answer,) = await generation.answers(model)
        formatter = MessageFormatter(generation.requests[0].request_id, model.ref.id, planner_warnings(model))
        await kept(formatter, answer)
        return formatter.whole(answer)

    if body.stream:
        return EventStream(streamed(), anthropic_error, NAMED_EVENTS)
    return await while_connected(request, whole())


@router.post("/count_tokens", refusals=errors(404))
async def count_tokens(request: Request, body: CountTokensBody) -> JsonResponse[TokenCount]:
    """The number of tokens that the prompt of a request would have."""
    state = app_state(request)
    body = await whole_conversation(responses_of(request), body)
    model = await model_of(request, body.model or "")
    turn = await turn_of(state, model, body.turn)

    async def count() -> TokenCount:
        return {"input_tokens": await n_prompt_tokens(model, turn)}

    return await while_connected(request, count())


async def _compacted(
    request: Request, model: ServedModel, body: MessagesBody, turn: ChatTurn
) -> JsonResponse[MessageResponse] | EventStream[dict[str, Any]]:
    assert body.compaction is not None
    try:
        asked = compaction_turn(turn, body.compaction.instructions or "")
    except NothingToSummarizeError as error:
        code = "compaction_nothing_to_summarize"
        raise RefusedError(400, code, error.cause, error.remedy, {"error_code": code}) from None

    async def summarized() -> tuple[MessageFormatter, Answer]:
        answer = await summary_of(model, asked)
        return MessageFormatter(asked.request.request_id, model.ref.id, planner_warnings(model)), answer

    async def streamed() -> AsyncGenerator[Event, None]:
        formatter, answer = await summarized()
        for event in MessageStreamEvents(formatter).compaction(answer):
            yield event

    async def whole() -> MessageResponse:
        formatter, answer = await summarized()
        return formatter.compaction(answer)

    if body.stream:
        return EventStream(streamed(), anthropic_error, NAMED_EVENTS)
    return await while_connected(request, whole())


async def _answered(
    model: ServedModel, turn: ChatTurn, kept: Callable[[MessageFormatter, Answer], Awaitable[None]]
) -> AsyncGenerator[Event, None]:
    generation = await chat_generation(model, turn)
    (sent,) = generation.requests
    n_sent_tokens = await model.n_tokens(sent.prompt, add_special=sent.add_special, media=sent.media)
    events: MessageStreamEvents | None = None
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if events is None:  # only now the model is loaded and there may be warnings
                formatter = MessageFormatter(sent.request_id, model.ref.id, planner_warnings(model))
                events = MessageStreamEvents(formatter)
                yield events.opening(n_sent_tokens)
            for event in events.of_delta(delta) if delta else ():
                yield event
            if answer.is_finished:
                await kept(formatter, answer)  # before its end, after which a client may go on from it
                for event in events.ending(answer):
                    yield event
