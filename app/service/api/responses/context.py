"""The conversation that a request of /v1/responses goes on with, where its answer is kept, and pages of its items.

Owns what `previous_response_id`, `conversation`, `item_reference` and `store` mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from app.common.event_log import log_event
from app.protocol.errors import RequestError
from app.service.api.responses.items import InputItem, Item, parse_item
from app.service.api.responses.requests import InputTokensBody, ResponsesBody
from app.service.api.responses.responses import UNFINISHED, ResponseObject
from app.service.api.responses.store import Kind, Record, ResponseStore
from app.service.generation.media import PromptMedia
from app.service.http.errors import RefusedError, message_of
from app.service.models.model_file import Senses
from quantizer.system.errors import StorageError

_STORED = (
    "Only what is stored can be named; the settings responses_size and responses_days limit how much and how long."
)


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation: its stored items, and the new ones with what they refer to."""

    earlier: Sequence[Item]
    new: Sequence[InputItem]

    @property
    def items(self) -> list[InputItem]:
        """All items in order. Raises RequestError for a stored one of another version."""
        return [*(parse_item(item) for item in self.earlier), *self.new]

    def for_store(self, *, by_position: bool) -> list[Item]:
        """Return the new items as they are stored; by their position those that come again are stored once."""
        first = len(self.earlier)
        return [item.for_store(first + index if by_position else None) for index, item in enumerate(self.new)]


async def context_of(store: ResponseStore, body: ResponsesBody | InputTokensBody) -> Context:
    """Return the conversation of a request. Raises RefusedError for a name of what is not stored."""
    earlier = await _earlier(store, body)
    present = {item["id"]: item for item in earlier}
    items = [item for item in body.items() if not _is_present(item, present)]
    referenced = await store.referenced(name for item in items if (name := item.reference))
    return Context(earlier, [_resolved(item, referenced) for item in items])


def _is_present(item: InputItem, present: Mapping[str, Item]) -> bool:
    """Return whether the conversation has `item` already, by reference or whole: it is not repeated to the model."""
    stored = present.get(item.id or "")
    if stored is None:
        return False
    compared = PromptMedia(Senses(sees=True, hears=True))  # so that two pictures differ
    is_same = item.reference is None and parse_item(stored).messages(compared) == item.messages(compared)
    return is_same or item.reference is not None


async def _earlier(store: ResponseStore, body: ResponsesBody | InputTokensBody) -> list[Item]:
    if conversation := body.conversation_id:
        found = await store.items(Kind.CONVERSATION, conversation)
        if found is None:
            raise not_found(Kind.CONVERSATION, conversation)
        return found
    if not (previous := body.previous_response_id):
        return []
    found = await store.items(Kind.RESPONSE, previous)
    record = await store.record(Kind.RESPONSE, previous)
    if record is not None and record.object["status"] in UNFINISHED:
        cause = f"Previous response with id {previous[:80]!r} is still in progress."
        raise RefusedError(400, "previous_response_in_progress", cause, "Wait until it has ended, or cancel it.")
    if found is None:
        cause = f"Previous response with id {previous[:80]!r} not found."
        raise RefusedError(400, "previous_response_not_found", cause, _STORED)
    return found


def _resolved(item: InputItem, referenced: dict[str, Item]) -> InputItem:
    name = item.reference
    if name is None:
        return item
    if name not in referenced:
        raise RefusedError(404, "not_found", f"Item with id {name[:80]!r} not found.", _STORED)
    return parse_item(referenced[name])


def not_found(kind: Kind, name: str) -> RefusedError:
    """Return the error for a response or conversation that is not stored."""
    return RefusedError(404, "not_found", f"{kind.title()} with id {name[:80]!r} not found.", _STORED)


async def keep(
    store: ResponseStore, context: Context, response: ResponseObject, process: int = 0, *, extends: bool = True
) -> ResponseObject:
    """Store `response` where it is to be, and return it as it is answered: one that cannot be stored has a warning.

    It `extends` the conversation that it belongs to. `process` answers it in the background.
    """
    conversation = response["conversation"] if extends else None
    if not (response["store"] or conversation):
        return response
    new = context.for_store(by_position=response["conversation"] is None)
    outputs = cast("list[Item]", response["output"])
    try:
        if conversation and not await store.extend(conversation["id"], [*new, *outputs]):
            return _unstored(response, "Its conversation has been deleted.")
        if response["store"]:
            items = [*context.earlier, *new]
            kept = {name: value for name, value in response.items() if name not in ("output", "warnings")}
            stays = await store.add(Kind.RESPONSE, kept, items, outputs, process)
            return response if stays else _unstored(response, "It is larger than the setting responses_size.")
    except StorageError as error:
        log_event("service", f"A response is not stored: {error}")
        return _unstored(response, message_of(error, hide_paths=True))
    return response


def response_of(record: Record) -> ResponseObject:
    """Return a stored response."""
    return cast("ResponseObject", {**record.object, "output": record.outputs})


def _unstored(response: ResponseObject, cause: str) -> ResponseObject:
    warnings = [*response.get("warnings", ()), f"The response is not stored. {cause}"]
    return {**response, "store": False, "warnings": warnings}


_DEFAULT_LIMIT, _MOST = 20, 100  # source: openai 3.54, `InputItemListParams`


class ItemList(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Which items are wanted: at most `limit`, after the one with the id `after`, the newest first or last."""

    limit: int = _DEFAULT_LIMIT
    is_ascending: bool = False
    after: str = ""

    @classmethod
    def of(cls, limit: str, order: str, after: str) -> Page:
        """Return the page that a query asks for. Raises RequestError for an invalid one."""
        if order not in ("", "asc", "desc"):
            raise RequestError(f"order is {order[:40]!r}.", "Use asc or desc.")
        is_number = limit.isascii() and limit.isdigit() and len(limit) < 5
        if limit and not (is_number and 1 <= int(limit) <= _MOST):
            raise RequestError(f"limit is {limit[:40]!r}.", f"Ask for 1 to {_MOST} items.")
        return cls(int(limit or _DEFAULT_LIMIT), order == "asc", after)


def page_of(items: Sequence[Item], page: Page) -> ItemList:
    """Return the page of `items`, which are in the order of the conversation. Raises RequestError for no such item."""
    ordered = list(items) if page.is_ascending else list(reversed(items))
    if page.after:
        positions = [index for index, item in enumerate(ordered) if item["id"] == page.after]
        if not positions:
            raise RequestError(f"after is {page.after[:80]!r}, which is no item of it.", "Give the id of an item.")
        ordered = ordered[positions[0] + 1 :]
    shown = ordered[: page.limit]
    return list_of(shown, has_more=len(shown) < len(ordered))


def list_of(items: Sequence[Item], *, has_more: bool = False) -> ItemList:
    """Return `items` as a list."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
