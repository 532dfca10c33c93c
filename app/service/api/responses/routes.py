"""Routes of OpenAI's Responses API: /v1/responses, and those of stored responses."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, turn_of
from app.service.api.responses.context import ItemList, Page, context_of, not_found, page_of, response_of
from app.service.api.responses.exchange import Exchange
from app.service.api.responses.requests import InputTokensBody, ResponsesBody
from app.service.api.responses.responses import UNFINISHED, ResponseObject
from app.service.api.responses.store import Kind
from app.service.api.text_request import with_recipe_defaults
from app.service.generation.chat import n_prompt_tokens
from app.service.http.errors import openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected
from quantizer.system.process import is_process_alive

router = Router()
_NEVER = RequestError("Only responses with background can be streamed again or cancelled.", "Set background.")


class InputTokens(TypedDict):
    """The number of tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: NonNegativeInt


class DeletedResponse(TypedDict):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


@router.post("/v1/responses", openapi_extra=errors(404, 429))
@router.post("/responses", openapi_extra=errors(404, 429))
async def responses(
    request: Request, body: ResponsesBody
) -> JsonResponse[ResponseObject] | EventStream[dict[str, Any]]:
    """The next items of a conversation."""
    state = app_state(request)
    context = await context_of(state.responses, body)
    model = await model_of(request, body.model or "")
    asked = with_recipe_defaults(body, model.file.recipe)
    turn = await turn_of(state, model, lambda media: asked.turn(context.items, media))
    exchange = Exchange(model, turn, body, context, state.responses)
    if body.background:
        if not exchange.so_far()["store"]:
            raise RequestError("A response with background has to be stored.", "Leave out store, or background.")
        run = await state.runs.start(exchange)
        if body.stream:
            return EventStream(run.follow(), openai_error, NAMED_EVENTS)
        return JsonResponse(run.response)
    if body.stream:
        return EventStream(exchange.stream(), openai_error, NAMED_EVENTS)

    async def whole() -> JsonResponse[ResponseObject]:
        return JsonResponse(await exchange.whole())

    return await while_connected(request, whole())


@router.post("/v1/responses/input_tokens", openapi_extra=errors(404))
@router.post("/responses/input_tokens", openapi_extra=errors(404))
async def input_tokens(request: Request, body: InputTokensBody) -> JsonResponse[InputTokens]:
    """The number of tokens that the prompt of a request would have."""
    state = app_state(request)
    context = await context_of(state.responses, body)
    model = await model_of(request, body.model or "")
    turn = await turn_of(state, model, lambda media: body.turn(context.items, media))

    async def count() -> JsonResponse[InputTokens]:
        n_tokens = await n_prompt_tokens(model, turn)
        return JsonResponse({"object": "response.input_tokens", "input_tokens": n_tokens})

    return await while_connected(request, count())


@router.get("/v1/responses/{response_id}", openapi_extra=errors(400, 404))
async def response(
    request: Request, response_id: str, stream: str = "", starting_after: str = ""
) -> JsonResponse[ResponseObject] | EventStream[dict[str, Any]]:
    """A stored response, or one in the background as it is now; with `stream` the events of that."""
    run = app_state(request).runs.find(response_id)
    if stream.lower() == "true":
        if run is None:
            await _stored(request, response_id)
            raise _NEVER
        return EventStream(run.follow(_number(starting_after)), openai_error, NAMED_EVENTS)
    return JsonResponse(run.response if run else await _stored(request, response_id))


@router.delete("/v1/responses/{response_id}", openapi_extra=errors(404))
async def delete_response(request: Request, response_id: str) -> JsonResponse[DeletedResponse]:
    """Delete a stored response, and end it if it is in the background."""
    state = app_state(request)
    await state.runs.remove(response_id)
    if not await state.responses.remove(Kind.RESPONSE, response_id):
        raise not_found(Kind.RESPONSE, response_id)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel", openapi_extra=errors(400, 404))
async def cancel_response(request: Request, response_id: str) -> JsonResponse[ResponseObject]:
    """Cancel a response in the background; one that has ended stays as it is."""
    run = app_state(request).runs.find(response_id)
    if run is None:
        stored = await _stored(request, response_id)
        if not stored["background"] or stored["status"] in UNFINISHED:
            raise _NEVER
        return JsonResponse(stored)
    await run.cancel()
    return JsonResponse(run.response)


@router.get("/v1/responses/{response_id}/input_items", openapi_extra=errors(400, 404))
async def input_items(
    request: Request, response_id: str, limit: str = "", order: str = "", after: str = ""
) -> JsonResponse[ItemList]:
    """What a stored response answered: the whole conversation before it, the newest first unless `order` is asc."""
    page = Page.of(limit, order, after)
    items = await app_state(request).responses.items(Kind.RESPONSE, response_id, with_outputs=False)
    if items is None:
        raise not_found(Kind.RESPONSE, response_id)
    return JsonResponse(page_of(items, page))


async def _stored(request: Request, response_id: str) -> ResponseObject:
    """Return a stored response. Raises RefusedError for one that is not stored."""
    record = await app_state(request).responses.record(Kind.RESPONSE, response_id)
    if record is None:
        raise not_found(Kind.RESPONSE, response_id)
    found = response_of(record)
    if found["status"] in UNFINISHED and not is_process_alive(str(record.process)):
        lost = {"code": "server_error", "message": "The service ended before the answer was whole. Ask again."}
        return {**found, "status": "failed", "error": lost}  # type: ignore[typeddict-item]
    return found


def _number(text: str) -> int:
    """Return the number of an event after which to go on, -1 for the beginning."""
    if text and not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RequestError(f"starting_after is {text[:40]!r}.", "Give the sequence_number of an event.")
    return int(text or -1)
