"""Which of the kept chats are on the list: what a person wants to see, and the rows that it makes.

Pure but for the store that is handed in. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.chat.chat import Chat
from app.chat.chats import PAGE_SIZE
from app.chat.filter import Filter
from app.chat.search import Snippet
from app.chat.store import ChatStore

__all__ = ["AGES", "Row", "Wanted", "read_rows"]

# What the choice of ages offers, in days; 1 is today.
AGES = {0: "Any time", 1: "Today", 7: "Last 7 days", 30: "Last 30 days", 365: "Last 365 days"}


@dataclass(frozen=True, slots=True)
class Row:
    """A chat on the list and, of a search, where its words were found."""

    chat: Chat
    message_id: int | None = None
    snippet: Snippet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is typed into the search, and how the list is narrowed. A search finds archived chats too."""

    typed: str = ""
    model: str | None = None
    n_days: int = 0
    is_archived: bool = False

    @property
    def is_search(self) -> bool:
        return bool(self.typed.strip())

    @property
    def is_narrowed(self) -> bool:
        """True where chats may be missing on the list that are kept."""
        return self.is_search or self.is_archived or self.model is not None or self.n_days > 0

    def filter(self, now: datetime) -> Filter:
        """Return which chats may be listed; days begin at midnight where `now` is."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since = midnight - timedelta(days=self.n_days - 1)
        return Filter(model=self.model, since_ms=int(since.timestamp() * 1000) if self.n_days else None)


def read_rows(
    wanted: Wanted,
    now: datetime,
    shown: Sequence[Row],
    store: ChatStore,
    n_rows: int = PAGE_SIZE,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[Row]:
    """Return up to `n_rows` rows that follow those that are `shown`; fewer of a search that is no longer wanted."""
    narrowed = wanted.filter(now)
    if wanted.is_search:
        hits = store.search.find(wanted.typed, narrowed, limit=len(shown) + n_rows, is_wanted=is_wanted)
        return [Row(hit.chat, hit.message_id, hit.snippet) for hit in hits[len(shown) :]]
    after = shown[-1].chat if shown else None
    chats = store.chats.page(after=after, archived=wanted.is_archived, narrowed=narrowed, limit=n_rows)
    return [Row(chat) for chat in chats]
