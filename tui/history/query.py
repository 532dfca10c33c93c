"""Queries for the list of chats: search text, filters, and the rows they return.

Owns the cancellation of an outdated search. Independent of widgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.chat.chats import PAGE_SIZE
from app.chat.conversation import Chat
from app.chat.search import ChatFilter, Snippet
from app.chat.store import ChatStore, StoreThread

__all__ = ["AGES", "ChatQuery", "HistoryRow", "fetch_rows", "query_rows"]

# What the choice of ages offers, in days; 1 is today.
AGES = {0: "Any time", 1: "Today", 7: "Last 7 days", 30: "Last 30 days", 365: "Last 365 days"}


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A chat in the list and, in a search, the position of the match."""

    chat: Chat
    message_id: int | None = None
    snippet: Snippet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuery:
    """Search text and filters. A search includes archived chats."""

    typed: str = ""
    model: str | None = None
    n_days: int = 0
    is_archived: bool = False

    @property
    def is_search(self) -> bool:
        return bool(self.typed.strip())

    @property
    def is_narrowed(self) -> bool:
        """Whether the list may omit stored chats."""
        return self.is_search or self.is_archived or self.model is not None or self.n_days > 0

    def filter(self, now: datetime) -> ChatFilter:
        """Return the store's filter; days begin at midnight in the time zone of `now`."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since = midnight - timedelta(days=self.n_days - 1)
        return ChatFilter(model=self.model, since_ms=int(since.timestamp() * 1000) if self.n_days else None)


def query_rows(
    chat_query: ChatQuery,
    now: datetime,
    shown: Sequence[HistoryRow],
    store: ChatStore,
    n_rows: int = PAGE_SIZE,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[HistoryRow]:
    """Return up to `n_rows` rows after the `shown` ones; fewer if `is_wanted` became false during a search."""
    narrowed = chat_query.filter(now)
    if chat_query.is_search:
        hits = store.search.find(chat_query.typed, narrowed, limit=len(shown) + n_rows, is_wanted=is_wanted)
        return [HistoryRow(hit.chat, hit.message_id, hit.snippet) for hit in hits[len(shown) :]]
    after = shown[-1].chat if shown else None
    chats = store.chats.page(after=after, archived=chat_query.is_archived, chat_filter=narrowed, limit=n_rows)
    return [HistoryRow(chat) for chat in chats]


async def fetch_rows(
    thread: StoreThread, chat_query: ChatQuery, n_rows: int, shown: Sequence[HistoryRow] = ()
) -> list[HistoryRow]:
    """Return up to `n_rows` rows after the `shown` ones. Raises StorageError. If cancelled, releases `thread` soon."""
    now = datetime.now().astimezone()
    is_over = threading.Event()
    try:
        return await thread.do(
            lambda store: query_rows(chat_query, now, shown, store, n_rows, lambda: not is_over.is_set())
        )
    finally:
        is_over.set()
