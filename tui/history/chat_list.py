"""The list of chats, loaded in pages as the user scrolls, and the search field and filters that narrow it."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.css.styles import RulesMap
from textual.message import Message
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, RichVisual, Visual
from textual.widget import Widget
from textual.widgets import Input, OptionList, Select
from textual.widgets.option_list import Option

from app.chat.conversation import Chat
from app.chat.store.chat_store import ChatStore, StoreThread
from app.chat.store.search import ChatFilter, Snippet
from app.chat.store.tables import PAGE_SIZE
from app.common.terminal import printable, printable_line

# What the choice of ages offers, in days; 1 is today.
AGES = {0: "Any time", 1: "Today", 7: "Last 7 days", 30: "Last 30 days", 365: "Last 365 days"}

_MODEL_CELLS = 18
_MATCH = "bold underline"
_MOMENT_CELLS = len("2026-01-01 12:00")
_MOST_AT_ONCE = 1000
_ALL_AT_ONCE = 20_000  # rows towards the end: less work than many pages, without a visible pause


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A chat in the list, what it does ("answering", "asking") and, in a search, the position of the match."""

    chat: Chat
    message_id: int | None = None
    snippet: Snippet | None = None
    activity: str = ""

    @property
    def found_in_message(self) -> Snippet | None:
        return self.snippet if self.message_id is not None else None


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
        self.post_message(self.Left())

    def action_give_up(self) -> None:
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
        model, age, archived = self._chosen("model"), self._chosen("age"), self._chosen("archived")
        return ChatQuery(typed=self.search.value, model=model, n_days=age or 0, is_archived=bool(archived))

    def offer(self, models: Iterable[str]) -> None:
        chosen = self._chosen("model")
        names = list(models)
        select = self.query_one("#model", Select)
        with self.prevent(Select.Changed):
            select.set_options([(Text(printable_line(name)), name) for name in names])
            if chosen in names:
                select.value = chosen

    def clear(self) -> bool:
        """Ask for all active chats again, without posting it; return False if nothing else was asked for."""
        was_narrowed = self.chat_query.is_narrowed
        with self.prevent(Input.Changed, Select.Changed):
            self.search.value = ""
            self.query_one("#model", Select).clear()
            self.query_one("#age", Select).value = 0
            self.query_one("#archived", Select).value = False
        return was_narrowed

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        self.post_message(self.Changed())

    def _chosen(self, name: str) -> Any:
        return self.query_one(f"#{name}", Select).selection


class ChatRowVisual(Visual):
    """One row, drawn only in view: Textual asks every row for its height and would draw all of them for it."""

    def __init__(self, widget: Widget, row: HistoryRow) -> None:
        self._widget = widget
        self._row = row

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return RichVisual(self._widget, row_text(self._row)).render_strips(width, height, style, options)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:  # noqa: ARG002
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:  # noqa: ARG002
        return 1 if self._row.found_in_message is None else 2


def row_text(row: HistoryRow) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_MODEL_CELLS, justify="right")
    grid.add_column(no_wrap=True)
    chat, found = row.chat, row.found_in_message
    in_title = row.snippet if found is None else None
    title = _marked(in_title) if in_title else Text(printable_line(chat.title) or "(untitled)")
    title.append(" [archived]" if chat.is_archived else "", "dim")
    model = Text(printable_line(chat.model), "dim")
    if row.activity:
        moment = Text(f"● {row.activity}".rjust(_MOMENT_CELLS), "bold")
    else:
        moment = Text(f"{datetime.fromtimestamp(chat.updated_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M}", "dim")
    grid.add_row(Text("◆" if chat.is_pinned else ""), title, model, moment)
    if found is not None:
        grid.add_row(Text(""), _marked(found), Text(""), Text(""))
    return grid


def _marked(snippet: Snippet) -> Text:
    text, end = Text(), 0
    for begin, after in snippet.matches:
        text.append(_one_line(snippet.text[end:begin])).append(_one_line(snippet.text[begin:after]), _MATCH)
        end = after
    return text.append(_one_line(snippet.text[end:]))


def _one_line(piece: str) -> str:
    return re.sub(r"\s+", " ", printable(piece))


class ChatList(OptionList):
    """Rows in the given order. Posts RowsNeeded once per page if more rows are needed."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("enter", "select", "Open", id="chats-open", tooltip="Open the chat"),
    )
    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    @dataclass
    class RowsNeeded(Message):
        """The user is near the end of the loaded rows, or scrolls beyond it."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.rows: list[HistoryRow] = []
        self.is_complete = True  # every stored row is loaded
        self._known: set[int] = set()
        self._goal: float | None = None  # the row to go to that is not loaded yet
        self._has_requested = False

    @property
    def row(self) -> HistoryRow | None:
        return self.rows[self.highlighted] if self.highlighted is not None else None

    @property
    def n_wanted(self) -> int:
        """The number of rows to load next: doubles the list, so that a distant row takes few pages."""
        if self._goal == math.inf:
            return _ALL_AT_ONCE
        return min(max(len(self.rows), PAGE_SIZE), _MOST_AT_ONCE)

    def show(self, rows: Sequence[HistoryRow], *, is_complete: bool, is_new_query: bool) -> None:
        """Replace the rows. The highlight stays on its chat or, if that is missing, on its position; for an
        `is_new_query` list, on the first row."""
        chat_id, index = (self.row.chat.id if self.row else None), 0 if is_new_query else self.highlighted or 0
        self.clear_options()
        self.rows = []
        self._known.clear()
        self._goal = None
        self.add(rows, is_complete=is_complete)
        positions = {row.chat.id: position for position, row in enumerate(self.rows)}
        if rows:
            self.highlighted = positions.get(chat_id or 0, min(index, len(self.rows) - 1))

    def add(self, rows: Sequence[HistoryRow], *, is_complete: bool) -> None:
        """Append rows, and continue towards a row that was not loaded yet."""
        new = [row for row in rows if row.chat.id not in self._known]  # another window may have moved a chat
        self._known.update(row.chat.id for row in new)
        self.rows += new
        self.is_complete = is_complete
        self.add_options([Option(ChatRowVisual(self, row)) for row in new])
        self._has_requested = False
        if self._goal is not None and self.rows:
            self._go_towards(self._goal)
        self._request_rows()

    def action_last(self) -> None:
        self._go_towards(math.inf)

    def action_page_down(self) -> None:
        before = self._position
        super().action_page_down()  # type: ignore[no-untyped-call]
        if not self.is_complete and self.highlighted == len(self.rows) - 1:
            # As many rows as a page has now: some have two lines.
            n_rows = max(1, self.size.height * len(self.rows) // max(1, self.virtual_size.height))
            self._go_towards(max(before + n_rows, self.highlighted))

    def action_cursor_down(self) -> None:
        """Go down a row, and from the last one of all to the first."""
        if self.is_complete or self._position < len(self.rows) - 1:
            super().action_cursor_down()
        else:
            self._go_towards(self._position + 1)

    def action_cursor_up(self) -> None:
        if self.highlighted == 0:
            self.action_last()
        else:
            super().action_cursor_up()

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        if highlighted is not None and highlighted != len(self.rows) - 1:
            self._goal = None  # the user moved elsewhere
        self._request_rows()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value:
            self._request_rows()

    @property
    def _position(self) -> float:
        return self._goal if self._goal is not None else self.highlighted or 0

    def _go_towards(self, goal: float) -> None:
        """Highlight row `goal`, or the last loaded one until it is loaded."""
        is_loaded = self.is_complete or goal < len(self.rows)
        self.highlighted = int(min(goal, len(self.rows) - 1))
        self._goal = None if is_loaded else goal
        self._request_rows()

    def _request_rows(self) -> None:
        n_visible = self.size.height  # 0 before the first layout
        is_near_end = n_visible > 0 and (
            (self.highlighted is not None and self.highlighted >= len(self.rows) - n_visible)
            or self.scroll_y >= self.max_scroll_y - n_visible
        )
        needs_rows = not self.is_complete and (self._goal is not None or is_near_end)
        if needs_rows and not self._has_requested:
            self._has_requested = True
            self.post_message(self.RowsNeeded())
