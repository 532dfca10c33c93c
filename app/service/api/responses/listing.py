"""Pages of items, as clients walk through them: `limit`, `order` and `after`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.responses.items import Item

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
