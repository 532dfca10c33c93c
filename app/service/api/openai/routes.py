"""Routes of OpenAI's dialect for text: /v1/chat/completions, /v1/completions, and Mistral's /v1/fim/completions.

Without /v1 they are for clients that were given the address of the server alone; /completions is llama-server's own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal, TypeAlias, TypeVar

from fastapi import Request
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, planner_warnings, prompt_with_media, turn_of
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody, FimBody, OpenAiBody
from app.service.api.openai.responses import (
    ChatChunk,
    ChatCompletion,
    ChatFormatter,
    Chunk,
    Completion,
    CompletionFormatter,
    TextChunk,
    TextCompletion,
    TextFormatter,
)
from app.service.api.text_request import with_recipe_defaults, with_token_ids
from app.service.generation.chat import chat_generation, n_prompt_tokens
from app.service.generation.generation import Answer, Generation, Prepare
from app.service.http.errors import openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse, while_connected
from app.service.infill_request import fim_generation
from app.service.models.served_model import ServedModel

router = Router()

Choice = TypeVar("Choice")
ChunkChoice = TypeVar("ChunkChoice")


class ChatInputTokens(TypedDict):
    """The number of tokens of a prompt, in the form of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: NonNegativeInt


ChatResponse: TypeAlias = JsonResponse[ChatCompletion] | EventStream[ChatChunk]
TextResponse: TypeAlias = JsonResponse[TextCompletion] | EventStream[TextChunk]


@router.post("/v1/chat/completions", openapi_extra=errors(404))
@router.post("/chat/completions", openapi_extra=errors(404))
async def chat_completions(request: Request, body: ChatCompletionBody) -> ChatResponse:
    """The next message of a conversation."""
    model = await model_of(request, body.model or "", body.idle_limit)
    turn = await turn_of(app_state(request), model, with_recipe_defaults(body, model.file.recipe).turn)
    return await _respond(request, ChatFormatter, body, model, lambda: chat_generation(model, turn))


@router.post("/v1/chat/completions/input_tokens", openapi_extra=errors(404))
@router.post("/chat/completions/input_tokens", openapi_extra=errors(404))
async def chat_input_tokens(request: Request, body: ChatCompletionBody) -> JsonResponse[ChatInputTokens]:
    """The number of tokens that the prompt of a request would have, as llama-server has it."""
    model = await model_of(request, body.model or "", body.idle_limit)
    turn = await turn_of(app_state(request), model, body.turn)

    async def count() -> JsonResponse[ChatInputTokens]:
        n_tokens = await n_prompt_tokens(model, turn)
        return JsonResponse({"object": "response.input_tokens", "input_tokens": n_tokens})

    return await while_connected(request, count())


@router.post("/v1/completions", openapi_extra=errors(404, 501))
async def completions(request: Request, body: CompletionBody) -> TextResponse:
    """The continuation of a text, or the text between two."""
    model = await model_of(request, body.model or "", body.idle_limit)
    body, media = await prompt_with_media(app_state(request), model, body)
    body = await with_token_ids(body, model)
    if media.markers and (body.suffix or body.echo):
        raise RequestError("Pictures and sounds exclude a suffix and echo.", "Leave those out.")
    fim, echoed = body.fim_request, body.echoed()
    requests = with_recipe_defaults(body, model.file.recipe).completion_requests()

    async def prepare() -> Generation:
        if fim:
            return await fim_generation(model, fim, requests)
        return Generation(tuple([await media.in_request(request) for request in requests]))

    return await _respond(request, TextFormatter, body, model, prepare, echoed)


@router.post("/v1/fim/completions", openapi_extra=errors(404, 501))
@router.post("/fim/completions", openapi_extra=errors(404, 501))
async def fim_completions(request: Request, body: FimBody) -> ChatResponse:
    """The text between two, as Mistral has it: in the form of a chat's answer."""
    model = await model_of(request, body.model or "", body.idle_limit)
    requests = with_recipe_defaults(body, model.file.recipe).request().variants(body.n_answers())
    fim = body.fim_request
    return await _respond(request, ChatFormatter, body, model, lambda: fim_generation(model, fim, requests))


async def _respond(
    request: Request,
    kind: type[CompletionFormatter[Choice, ChunkChoice]],
    body: OpenAiBody,
    model: ServedModel,
    prepare: Prepare,
    echoed: tuple[str, ...] = (),
) -> JsonResponse[Completion[Choice]] | EventStream[Chunk[ChunkChoice]]:
    async def begin() -> tuple[Generation, CompletionFormatter[Choice, ChunkChoice]]:
        generation = await prepare()
        return generation, kind(generation.requests, model.ref.id, body.n_answers(), echoed)

    async def whole() -> JsonResponse[Completion[Choice]]:
        generation, formatter = await begin()
        return JsonResponse(formatter.whole(await generation.answers(model), planner_warnings(model)))

    if body.stream:
        return EventStream(_chunks(begin, model, body), openai_error, DONE_EVENTS)
    return await while_connected(request, whole())


async def _chunks(
    begin: Callable[[], Awaitable[tuple[Generation, CompletionFormatter[Choice, ChunkChoice]]]],
    model: ServedModel,
    body: OpenAiBody,
) -> AsyncGenerator[Chunk[ChunkChoice], None]:
    generation, formatter = await begin()
    ended: list[Answer] = []
    is_opened = False
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if not is_opened:
                is_opened = True
                for opening in formatter.opening_chunks():
                    yield opening
            if delta:
                yield formatter.chunk(delta, counts_tokens=bool(body.timings_per_token))
            if answer.is_finished:
                ended.append(answer)
                yield formatter.final_chunk(answer, planner_warnings(model))
    if body.wants_usage:
        yield formatter.usage_chunk(ended)
