"""Routes of OpenAI's Responses API, /v1/responses, stored responses included, and of its Conversations API.

Conversations are items that responses go on with and are added to.
"""

from __future__ import annotations

import time
from typing import Any, Literal, cast
from uuid import uuid4

from pydantic import NonNegativeInt
from starlette.requests import Request
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, planner_warnings, responses_of, turn_of
from app.service.api.fields import Body
from app.service.api.openai.routes import InputTokens, input_tokens_of
from app.service.api.responses.exchange import (
    LOST,
    Exchange,
    ItemList,
    Page,
    Run,
    context_of,
    list_of,
    not_found,
    page_of,
)
from app.service.api.responses.requests import CompactBody, InputItem, InputTokensBody, Item, Metadata, ResponsesBody
from app.service.api.responses.responses import UNFINISHED, CompactedResponse, ResponseObject, compacted
from app.service.api.responses.store import Kind, ResponseStore
from app.service.api.text_request import with_model_defaults
from app.service.generation.compaction import compaction_turn, summary_of
from app.service.http.errors import RefusedError, openai_error
from app.service.http.guard import caller_of
from app.service.http.routing import Router, errors
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected

router = Router()
_NEVER = RequestError("Only responses with background can be streamed again or cancelled.", "Set background.")


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


@router.post("/v1/responses", refusals=errors(404, 429))
@router.post("/responses", refusals=errors(404, 429))
async def responses(
    request: Request, body: ResponsesBody
) -> JsonResponse[ResponseObject] | EventStream[dict[str, Any]]:
    """The next items of a conversation."""
    state, store = app_state(request), responses_of(request)
    context = await context_of(store, state.runs, body)
    model = await model_of(request, body.model or "")
    asked = with_model_defaults(body, model.file)
    turn = await turn_of(state, model, lambda media: asked.turn(context.items, media))
    exchange = Exchange(model, turn, body, context, store)
    if body.background:
        if not exchange.events.so_far()["store"]:
            raise RequestError("A response with background has to be stored.", "Leave out store, or background.")
        run = await state.runs.start(exchange)
        if body.stream:
            return EventStream(run.follow(), openai_error, NAMED_EVENTS)
        return JsonResponse(run.response)
    if body.stream:
        return EventStream(exchange.stream(), openai_error, NAMED_EVENTS)
    return await while_connected(request, exchange.whole())


@router.post("/v1/responses/input_tokens", refusals=errors(404))
@router.post("/responses/input_tokens", refusals=errors(404))
async def input_tokens(request: Request, body: InputTokensBody) -> JsonResponse[InputTokens]:
    """The number of tokens that the prompt of a request would have."""
    state = app_state(request)
    context = await context_of(responses_of(request), state.runs, body)
    model = await model_of(request, body.model or "")
    turn = await turn_of(state, model, lambda media: body.turn(context.items, media))
    return await input_tokens_of(request, model, turn)


@router.post("/v1/responses/compact", refusals=errors(404))
@router.post("/responses/compact", refusals=errors(404))
async def compact(request: Request, body: CompactBody) -> JsonResponse[CompactedResponse]:
    """The conversation in fewer tokens: the user's messages, and a summary of all."""
    state = app_state(request)
    context = await context_of(responses_of(request), state.runs, body)
    model = await model_of(request, body.model or "")
    asked = with_model_defaults(body, model.file)
    turn = compaction_turn(await turn_of(state, model, lambda media: asked.turn(context.items, media)))
    kept = [item.for_store(index) for index, item in enumerate(context.items) if item.is_of_user]

    async def summarized() -> CompactedResponse:
        answer = await summary_of(model, turn)
        return compacted(turn.request.request_id, kept, answer, planner_warnings(model))

    return await while_connected(request, summarized())


@router.get("/v1/responses/{response_id}", refusals=errors(400, 404))
async def response(
    request: Request, response_id: str, stream: str = "", starting_after: str = ""
) -> JsonResponse[ResponseObject] | EventStream[dict[str, Any]]:
    """A stored response, or one in the background as it is now; with `stream` the events of that."""
    run = await _run_of(request, response_id)
    if stream.lower() == "true":
        if run is None:
            await _stored(request, response_id)
            raise _NEVER
        return EventStream(run.follow(_number(starting_after)), openai_error, NAMED_EVENTS)
    return JsonResponse(run.response if run else await _stored(request, response_id))


@router.delete("/v1/responses/{response_id}", refusals=errors(404))
async def delete_response(request: Request, response_id: str) -> JsonResponse[DeletedResponse]:
    """Delete a stored response, and end it if it is in the background."""
    state = app_state(request)
    await state.runs.remove(response_id, caller_of(request.scope))
    if not await responses_of(request).remove(Kind.RESPONSE, response_id):
        raise not_found(Kind.RESPONSE, response_id)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel", refusals=errors(400, 404))
async def cancel_response(request: Request, response_id: str) -> JsonResponse[ResponseObject]:
    """Cancel a response in the background; one that has ended stays as it is."""
    run = await _run_of(request, response_id)
    if run is None:
        stored = await _stored(request, response_id)
        if not stored["background"] or stored["status"] in UNFINISHED:
            raise _NEVER
        return JsonResponse(stored)
    await run.cancel()
    return JsonResponse(run.response)


@router.get("/v1/responses/{response_id}/input_items", refusals=errors(400, 404))
async def input_items(
    request: Request, response_id: str, limit: str = "", order: str = "", after: str = ""
) -> JsonResponse[ItemList]:
    """What a stored response answered: the whole conversation before it, the newest first unless `order` is asc."""
    page = Page.of(limit, order, after)
    return JsonResponse(page_of(await _items_of(request, Kind.RESPONSE, response_id), page))


async def _run_of(request: Request, response_id: str) -> Run | None:
    """Return the run of a response in the background, None for one that has none here, or was deleted by a client of
    another service."""
    state = app_state(request)
    run = state.runs.find(response_id, caller_of(request.scope))
    if run is None or not run.has_ended:
        return run
    is_stored = run.response["store"] and await responses_of(request).record(Kind.RESPONSE, response_id) is not None
    # one that could not be stored is here alone
    return run if is_stored or not (run.response["store"] or run.was_deleted) else None


async def _stored(request: Request, response_id: str) -> ResponseObject:
    state = app_state(request)
    record = await responses_of(request).record(Kind.RESPONSE, response_id)
    if record is None:
        raise not_found(Kind.RESPONSE, response_id)
    found = cast("ResponseObject", {**record.object, "output": record.outputs})
    if found["status"] in UNFINISHED and not state.runs.is_running(response_id, record.process):
        lost = {"code": "server_error", "message": f"The answer is lost: {LOST} Ask again."}
        return {**found, "status": "failed", "error": lost}  # type: ignore[typeddict-item]
    return found


def _number(text: str) -> int:
    """Return the number of an event after which to go on, -1 for the beginning."""
    if text and not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RequestError(f"starting_after is {text[:40]!r}.", "Give the sequence_number of an event.")
    return int(text or -1)


class ConversationChange(Body):
    metadata: Metadata | None = None


class ConversationBody(ConversationChange):
    items: list[InputItem] | None = None


class NewItemsBody(Body):
    items: list[InputItem]


class Conversation(TypedDict):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: NonNegativeInt
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


@router.post("/v1/conversations")
async def create_conversation(request: Request, body: ConversationBody) -> JsonResponse[Conversation]:
    """Store a new conversation."""
    store = responses_of(request)
    if not store.is_enabled:
        raise RequestError("The setting responses_size lets nothing be stored.", "Set it to a size, such as 512MiB.")
    conversation: Conversation = {
        "id": f"conv_{uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": dict(body.metadata or {}),
    }
    items = await _stored_items(store, body.items or [])
    if not await store.add(Kind.CONVERSATION, cast("dict[str, Any]", conversation), items):
        raise RequestError("The conversation is larger than the setting responses_size.", "Send fewer items.")
    return JsonResponse(conversation)


@router.get("/v1/conversations/{conversation_id}", refusals=errors(404))
async def conversation(request: Request, conversation_id: str) -> JsonResponse[Conversation]:
    """A conversation without its items."""
    return JsonResponse(await _conversation_of(request, conversation_id))


@router.post("/v1/conversations/{conversation_id}", refusals=errors(404))
async def change_conversation(
    request: Request, conversation_id: str, body: ConversationChange
) -> JsonResponse[Conversation]:
    """Change the metadata of a conversation."""
    found = await _conversation_of(request, conversation_id)
    changed: Conversation = {**found, "metadata": dict(body.metadata or {})}
    await responses_of(request).replace(Kind.CONVERSATION, cast("dict[str, Any]", changed))
    return JsonResponse(changed)


@router.delete("/v1/conversations/{conversation_id}", refusals=errors(404))
async def delete_conversation(request: Request, conversation_id: str) -> JsonResponse[DeletedConversation]:
    """Delete a conversation with its items; responses that were stored stay."""
    if not await responses_of(request).remove(Kind.CONVERSATION, conversation_id):
        raise not_found(Kind.CONVERSATION, conversation_id)
    return JsonResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/v1/conversations/{conversation_id}/items", refusals=errors(400, 404))
async def conversation_items(
    request: Request, conversation_id: str, limit: str = "", order: str = "", after: str = ""
) -> JsonResponse[ItemList]:
    """The items of a conversation, the newest first unless `order` is asc."""
    page = Page.of(limit, order, after)
    return JsonResponse(page_of(await _items_of(request, Kind.CONVERSATION, conversation_id), page))


@router.post("/v1/conversations/{conversation_id}/items", refusals=errors(404))
async def add_items(request: Request, conversation_id: str, body: NewItemsBody) -> JsonResponse[ItemList]:
    """Add items to a conversation."""
    store = responses_of(request)
    items = await _stored_items(store, body.items)
    if not await store.extend(conversation_id, items):
        raise not_found(Kind.CONVERSATION, conversation_id)
    return JsonResponse(list_of(items))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}", refusals=errors(404))
async def conversation_item(request: Request, conversation_id: str, item_id: str) -> JsonResponse[dict[str, Any]]:
    """One item of a conversation."""
    for item in await _items_of(request, Kind.CONVERSATION, conversation_id):
        if item["id"] == item_id:
            return JsonResponse(item)
    raise _no_item(item_id)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}", refusals=errors(404))
async def delete_item(request: Request, conversation_id: str, item_id: str) -> JsonResponse[Conversation]:
    """Remove an item from a conversation, and return the conversation."""
    found = await _conversation_of(request, conversation_id)
    if not await responses_of(request).remove_item(conversation_id, item_id):
        raise _no_item(item_id)
    return JsonResponse(found)


async def _conversation_of(request: Request, conversation_id: str) -> Conversation:
    record = await responses_of(request).record(Kind.CONVERSATION, conversation_id)
    if record is None:
        raise not_found(Kind.CONVERSATION, conversation_id)
    return cast("Conversation", record.object)


async def _items_of(request: Request, kind: Kind, name: str) -> list[Item]:
    items = await responses_of(request).items(kind, name, with_outputs=False)  # conversations have none
    if items is None:
        raise not_found(kind, name)
    return items


async def _stored_items(store: ResponseStore, items: list[InputItem]) -> list[Item]:
    """Return `items` as they are stored, a reference as what it stands for. Raises RefusedError for unknown ones."""
    referenced = await store.referenced(name for item in items if (name := item.reference))
    for item in items:
        if item.reference is None:
            item.messages()  # an item that no model could be given is refused now
        elif item.reference not in referenced:
            raise _no_item(item.reference)
    return [referenced[item.reference] if item.reference else item.for_store() for item in items]


def _no_item(item_id: str) -> RefusedError:
    return RefusedError(404, "not_found", f"Item with id {item_id[:80]!r} not found.", "List the items that there are.")
