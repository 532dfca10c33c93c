"""Routes of OpenAI's Conversations API, /v1/conversations: items that responses go on with and are added to."""

from __future__ import annotations

import time
from typing import Any, Literal, cast
from uuid import uuid4

from fastapi import Request
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.api.responses.context import ItemList, Page, list_of, not_found, page_of
from app.service.api.responses.items import InputItem, Item
from app.service.api.responses.requests import Metadata
from app.service.api.responses.store import Kind, ResponseStore
from app.service.http.errors import RefusedError
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse

router = Router(prefix="/v1/conversations")


class ConversationBody(Body):
    """The body of a new conversation."""

    items: list[InputItem] | None = None
    metadata: Metadata | None = None


class ConversationChange(Body):
    """The body of a changed conversation."""

    metadata: Metadata | None = None


class NewItemsBody(Body):
    """The body of new items."""

    items: list[InputItem]


class Conversation(TypedDict):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: NonNegativeInt
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    """A conversation that is no longer stored."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


@router.post("")
async def create_conversation(request: Request, body: ConversationBody) -> JsonResponse[Conversation]:
    """Store a new conversation."""
    store = app_state(request).responses
    if not store.is_enabled:
        raise RequestError("The setting responses_size lets nothing be stored.", "Set it to a size, such as 512MiB.")
    conversation: Conversation = {
        "id": f"conv_{uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": dict(body.metadata or {}),
    }
    items = await _stored(store, body.items or [])
    if not await store.add(Kind.CONVERSATION, cast("dict[str, Any]", conversation), items):
        raise RequestError("The conversation is larger than the setting responses_size.", "Send fewer items.")
    return JsonResponse(conversation)


@router.get("/{conversation_id}", openapi_extra=errors(404))
async def conversation(request: Request, conversation_id: str) -> JsonResponse[Conversation]:
    """A conversation without its items."""
    return JsonResponse(await _conversation(request, conversation_id))


@router.post("/{conversation_id}", openapi_extra=errors(404))
async def change_conversation(
    request: Request, conversation_id: str, body: ConversationChange
) -> JsonResponse[Conversation]:
    """Change the metadata of a conversation."""
    found = await _conversation(request, conversation_id)
    changed: Conversation = {**found, "metadata": dict(body.metadata or {})}
    await app_state(request).responses.replace(Kind.CONVERSATION, cast("dict[str, Any]", changed))
    return JsonResponse(changed)


@router.delete("/{conversation_id}", openapi_extra=errors(404))
async def delete_conversation(request: Request, conversation_id: str) -> JsonResponse[DeletedConversation]:
    """Delete a conversation with its items; responses that were stored stay."""
    if not await app_state(request).responses.remove(Kind.CONVERSATION, conversation_id):
        raise not_found(Kind.CONVERSATION, conversation_id)
    return JsonResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/{conversation_id}/items", openapi_extra=errors(400, 404))
async def conversation_items(
    request: Request, conversation_id: str, limit: str = "", order: str = "", after: str = ""
) -> JsonResponse[ItemList]:
    """The items of a conversation, the newest first unless `order` is asc."""
    page = Page.of(limit, order, after)
    return JsonResponse(page_of(await _items(request, conversation_id), page))


@router.post("/{conversation_id}/items", openapi_extra=errors(404))
async def add_items(request: Request, conversation_id: str, body: NewItemsBody) -> JsonResponse[ItemList]:
    """Add items to a conversation."""
    store = app_state(request).responses
    items = await _stored(store, body.items)
    if not await store.extend(conversation_id, items):
        raise not_found(Kind.CONVERSATION, conversation_id)
    return JsonResponse(list_of(items))


@router.get("/{conversation_id}/items/{item_id}", openapi_extra=errors(404))
async def conversation_item(request: Request, conversation_id: str, item_id: str) -> JsonResponse[dict[str, Any]]:
    """One item of a conversation."""
    for item in await _items(request, conversation_id):
        if item["id"] == item_id:
            return JsonResponse(item)
    raise _no_item(item_id)


@router.delete("/{conversation_id}/items/{item_id}", openapi_extra=errors(404))
async def delete_item(request: Request, conversation_id: str, item_id: str) -> JsonResponse[Conversation]:
    """Remove an item from a conversation, and return the conversation."""
    found = await _conversation(request, conversation_id)
    if not await app_state(request).responses.remove_item(conversation_id, item_id):
        raise _no_item(item_id)
    return JsonResponse(found)


async def _conversation(request: Request, conversation_id: str) -> Conversation:
    record = await app_state(request).responses.record(Kind.CONVERSATION, conversation_id)
    if record is None:
        raise not_found(Kind.CONVERSATION, conversation_id)
    return cast("Conversation", record.object)


async def _items(request: Request, conversation_id: str) -> list[Item]:
    items = await app_state(request).responses.items(Kind.CONVERSATION, conversation_id)
    if items is None:
        raise not_found(Kind.CONVERSATION, conversation_id)
    return items


async def _stored(store: ResponseStore, items: list[InputItem]) -> list[Item]:
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
