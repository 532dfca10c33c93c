"""Queries for the list of chats: the rows they return, and the search field and filters above the list.

Owns the cancellation of an outdated search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widgets import Input, Select

from app.chat.chats import PAGE_SIZE
from app.chat.conversation import Chat
from app.chat.search import ChatFilter, Snippet
from app.chat.store import ChatStore, StoreThread
from app.common.terminal import printable_line

# What the choice of ages offers, in days; 1 is today.
AGES = {0: "Any time", 1: "Today", 7: "Last 7 days", 30: "Last 30 days", 365: "Last 365 days"}


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A chat in the list, what it does ("answering", "asking") and, in a search, the position of the match."""

    chat: Chat
    message_id: int | None = None
    snippet: Snippet | None = None
    activity: str = ""


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


class SearchInput(Input):
    """The search field. Down and Enter go to the list, Escape clears it first."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("down", "leave", "To the list", id="search-list", tooltip="Go to the search results"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *KEYS,
        Binding("escape", "give_up", "Clear", id="search-clear", tooltip="Empty the search and go to the list"),
    ]

    @dataclass
    class Left(Message):
        """The user goes to the list."""

    def __init__(self) -> None:
        super().__init__(placeholder="Search every chat (/)", compact=True, select_on_focus=False)

    def action_leave(self) -> None:
        """Go to the list."""
        self.post_message(self.Left())

    def action_give_up(self) -> None:
        """Clear the search and go to the list."""
        self.value = ""
        self.post_message(self.Left())


class ChatFilters(Container):
    """Posts Changed when any part of the query changes."""

    @dataclass
    class Changed(Message):
        """The query changed."""

    def compose(self) -> ComposeResult:
        yield SearchInput()
        with Horizontal():
            yield Select[str]([], prompt="All models", compact=True, id="model")
            yield Select([(text, n_days) for n_days, text in AGES.items()], allow_blank=False, compact=True, id="age")
            yield Select([("Active", False), ("Archived", True)], allow_blank=False, compact=True, id="archived")

    @property
    def search(self) -> SearchInput:
        return self.query_one(SearchInput)

    @property
    def chat_query(self) -> ChatQuery:
        """The current query."""
        model, age, archived = self._chosen("model"), self._chosen("age"), self._chosen("archived")
        return ChatQuery(typed=self.search.value, model=model, n_days=age or 0, is_archived=bool(archived))

    def offer(self, models: Iterable[str]) -> None:
        """Set the models to choose from; keep the chosen one."""
        chosen = self._chosen("model")
        names = list(models)
        select = self.query_one("#model", Select)
        with self.prevent(Select.Changed):
            select.set_options([(Text(printable_line(name)), name) for name in names])
            if chosen in names:
                select.value = chosen

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        self.post_message(self.Changed())

    def _chosen(self, name: str) -> Any:
        return self.query_one(f"#{name}", Select).selection
