"""The list of chats below headings of days, loaded in pages as the user scrolls, and what narrows it."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from rich.cells import set_cell_size
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.css.styles import RulesMap
from textual.message import Message
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Input, OptionList, Select
from textual.widgets.option_list import Option

from app.chat.conversation import Chat
from app.chat.store.chat_store import ChatStore, StoreThread
from app.chat.store.search import ChatFilter, Snippet
from app.chat.store.tables import PAGE_SIZE
from app.common.terminal import printable, printable_line
from tui.design.search_box import SearchBox
from tui.design.words import counted, day_heading, model_label, relative_time

# What the choice of ages offers, in days; 1 is today.
AGES = {0: "Any time", 1: "Today", 7: "Last 7 days", 30: "Last 30 days", 365: "Last 365 days"}

_MODEL_CELLS = 18
_MOMENT_CELLS = len("12 Nov 2026")
_COUNT_CELLS = len("1,000 messages")
_LEAST_TITLE_CELLS = 34  # below this the model gives way, then the number of messages
_MATCH = "bold $text-accent"
_MOST_AT_ONCE = 1000
_ALL_AT_ONCE = 20_000  # rows towards the end: less work than many pages, without a visible pause


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A chat in the list with the number of its messages, what it does ("answering", "asking"; of another window only
    the first) and, in a search, the
    position of the match."""

    chat: Chat
    n_messages: int = 0
    message_id: int | None = None
    snippet: Snippet | None = None
    activity: str = ""

    @property
    def found_in_message(self) -> Snippet | None:
        return self.snippet if self.message_id is not None else None

    @property
    def updated(self) -> datetime:
        return datetime.fromtimestamp(self.chat.updated_ms / 1000, UTC)


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
    narrowed, answered = chat_query.filter(now), store.writers.chats()

    def row(chat: Chat, n_messages: int, message_id: int | None = None, snippet: Snippet | None = None) -> HistoryRow:
        return HistoryRow(chat, n_messages, message_id, snippet, "answering" if chat.id in answered else "")

    if chat_query.is_search:
        hits = store.search.find(chat_query.typed, narrowed, limit=len(shown) + n_rows, is_wanted=is_wanted)
        hits = hits[len(shown) :]
        counts = store.chats.message_counts([hit.chat.id for hit in hits])
        return [row(hit.chat, counts.get(hit.chat.id, 0), hit.message_id, hit.snippet) for hit in hits]
    after = shown[-1].chat if shown else None
    chats = store.chats.page(after=after, archived=chat_query.is_archived, chat_filter=narrowed, limit=n_rows)
    counts = store.chats.message_counts([chat.id for chat in chats])
    return [row(chat, counts.get(chat.id, 0)) for chat in chats]


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


class ChatFilters(Container):
    """Posts Changed when any part of the query changes."""

    @dataclass
    class Changed(Message):
        """The query changed."""

    def compose(self) -> ComposeResult:
        yield SearchBox("search every chat")
        with Horizontal():
            yield Select[str]([], prompt="All models", compact=True, id="model")
            yield Select([(text, n_days) for n_days, text in AGES.items()], allow_blank=False, compact=True, id="age")
            yield Select([("Active", False), ("Archived", True)], allow_blank=False, compact=True, id="archived")

    @property
    def search(self) -> SearchBox:
        return self.query_one(SearchBox)

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


class LinesVisual(Visual):
    """Lines as wide as the list, drawn only in view."""

    def lines(self, width: int) -> Sequence[Content]:
        raise NotImplementedError

    def render_strips(
        self,
        width: int,
        height: int | None,  # noqa: ARG002
        style: Style,
        options: RenderOptions,
    ) -> list[Strip]:
        return [strip for line in self.lines(width) for strip in line.render_strips(width, 1, style, options)]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:  # noqa: ARG002
        return container_width


class ChatRowVisual(LinesVisual):
    """One row. Textual asks every row for its height and would draw all of them for it."""

    def __init__(self, chat_list: ChatList, row: HistoryRow) -> None:
        self._list = chat_list
        self.row = row

    def lines(self, width: int) -> Sequence[Content]:
        return self._list.draw_row(self.row, width)

    def get_height(self, rules: RulesMap, width: int) -> int:  # noqa: ARG002
        return 1 if self.row.found_in_message is None else 2


class HeadingVisual(LinesVisual):
    """The heading of a group of chats, below an empty row unless it `is_first`."""

    def __init__(self, text: str, *, is_first: bool) -> None:
        self._lines = [Content.styled(f" {text}", "bold $text-muted")]
        if not is_first:
            self._lines.insert(0, Content(""))

    def lines(self, width: int) -> Sequence[Content]:  # noqa: ARG002
        return self._lines

    def get_height(self, rules: RulesMap, width: int) -> int:  # noqa: ARG002
        return len(self._lines)


def in_columns(left: Content, right: Content, width: int) -> Content:
    """Return `left`, cut where it must, and `right` at the end of a line of `width` cells."""
    n_left = max(width - right.cell_length, 0)
    left = left.truncate(n_left, ellipsis=True)
    return left + Content(" " * (n_left - left.cell_length)) + right


def title_of(row: HistoryRow) -> Content:
    """Return the title of a chat, with the matches of a search in it."""
    in_title = row.snippet if row.found_in_message is None else None
    return marked_snippet(in_title) if in_title else Content(printable_line(row.chat.title) or "(untitled)")


def row_lines(row: HistoryRow, width: int, now: datetime, *, shows_model: bool) -> list[Content]:
    """Return a chat in one line, in two if a search found it by one of its messages."""
    chat = row.chat
    moment = Content.styled(relative_time(row.updated, now).rjust(_MOMENT_CELLS), "$text-muted")
    if row.activity:
        color = "$text-warning" if row.activity == "asking" else "$text-accent"
        moment = Content.styled(f"● {row.activity}".rjust(_MOMENT_CELLS), color)
    right = Content.assemble(" ", moment, " ")
    count = Content.styled(counted(row.n_messages, "message").rjust(_COUNT_CELLS), "$text-muted")
    if width - right.cell_length - count.cell_length >= _LEAST_TITLE_CELLS:
        right = count + right
    name = model_label(printable_line(chat.model), _MODEL_CELLS) if shows_model else ""
    if shows_model and width - right.cell_length - _MODEL_CELLS >= _LEAST_TITLE_CELLS:
        right = Content.styled(set_cell_size(name, _MODEL_CELLS), "$text-muted") + right
    sign = Content.styled("◆ " if chat.is_pinned else "  ", "$text-accent")
    title = Content.assemble(sign, title_of(row), (" [archived]" if chat.is_archived else "", "$text-muted"))
    lines = [in_columns(title, Content("  ") + right, width)]
    if row.found_in_message is not None:
        found = Content.assemble(("    “", "$text-muted"), marked_snippet(row.found_in_message), ("”", "$text-muted"))
        lines.append(found.truncate(width, ellipsis=True))
    return lines


def marked_snippet(snippet: Snippet) -> Content:
    parts: list[Content | tuple[str, str] | str] = []
    end = 0
    for begin, after in snippet.matches:
        parts += [_one_line(snippet.text[end:begin]), (_one_line(snippet.text[begin:after]), _MATCH)]
        end = after
    return Content.assemble(*parts, _one_line(snippet.text[end:]))


def _one_line(piece: str) -> str:
    return re.sub(r"\s+", " ", printable(piece))


class ChatList(OptionList):
    """Rows in the given order, below headings of days unless they are of a search. Posts RowsNeeded once per page if
    more rows are needed. Rows are counted without the headings, which are options too."""

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
        self.shows_model = False  # not where it is the same everywhere
        self._known: set[int] = set()
        self._goal: float | None = None  # the row to go to that is not loaded yet
        self._has_requested = False
        self._now = datetime.now().astimezone()
        self._heading = ""  # above the last row
        self._options_of_rows: list[int] = []
        self._rows_of_options: dict[int, int] = {}

    @property
    def row_index(self) -> int | None:
        """The highlighted row."""
        return None if self.highlighted is None else self._rows_of_options.get(self.highlighted)

    @row_index.setter
    def row_index(self, index: int) -> None:
        self.highlighted = self._options_of_rows[index]

    @property
    def row(self) -> HistoryRow | None:
        return None if self.row_index is None else self.rows[self.row_index]

    def option_of_row(self, index: int) -> int:
        return self._options_of_rows[index]

    def row_of_option(self, index: int) -> HistoryRow:
        return self.rows[self._rows_of_options[index]]

    @property
    def n_wanted(self) -> int:
        """The number of rows to load next: doubles the list, so that a distant row takes few pages."""
        if self._goal == math.inf:
            return _ALL_AT_ONCE
        return min(max(len(self.rows), PAGE_SIZE), _MOST_AT_ONCE)

    def draw_row(self, row: HistoryRow, width: int) -> list[Content]:
        return row_lines(row, width, self._now, shows_model=self.shows_model)

    def show(self, rows: Sequence[HistoryRow], *, is_complete: bool, is_new_query: bool) -> None:
        """Replace the rows. The highlight stays on its chat or, if that is missing, on its position; for an
        `is_new_query` list, on the first row."""
        chat_id, index = (self.row.chat.id if self.row else None), 0 if is_new_query else self.row_index or 0
        self.clear_options()
        self.rows = []
        self._known.clear()
        self._options_of_rows.clear()
        self._rows_of_options.clear()
        self._heading = ""
        self._goal = None
        self._now = datetime.now().astimezone()
        self.add(rows, is_complete=is_complete)
        positions = {row.chat.id: position for position, row in enumerate(self.rows)}
        if rows:
            self.row_index = positions.get(chat_id or 0, min(index, len(self.rows) - 1))

    def add(self, rows: Sequence[HistoryRow], *, is_complete: bool) -> None:
        """Append rows, and continue towards a row that was not loaded yet."""
        new = [row for row in rows if row.chat.id not in self._known]  # another window may have moved a chat
        self._known.update(row.chat.id for row in new)
        self.is_complete = is_complete
        options: list[Option] = []
        n_before = self.option_count
        for index, row in enumerate(new, start=len(self.rows)):
            heading = "Pinned" if row.chat.is_pinned else day_heading(row.updated, self._now)
            if row.snippet is None and heading != self._heading:
                options.append(Option(HeadingVisual(heading, is_first=not self._heading), disabled=True))
                self._heading = heading
            self._options_of_rows.append(n_before + len(options))
            self._rows_of_options[n_before + len(options)] = index
            options.append(Option(ChatRowVisual(self, row)))
        self.rows += new
        if (shows_model := len({row.chat.model for row in self.rows}) > 1) != self.shows_model:
            self.shows_model = shows_model
            self._clear_caches()
        self.add_options(options)
        self._has_requested = False
        if self._goal is not None and self.rows:
            self._go_towards(self._goal)
        self._request_rows()

    def action_last(self) -> None:
        self._go_towards(math.inf)

    def action_page_down(self) -> None:
        before = self._position
        super().action_page_down()  # type: ignore[no-untyped-call]
        if not self.is_complete and self.row_index == len(self.rows) - 1:
            # As many rows as a page has now: some have two lines.
            n_rows = max(1, self.size.height * len(self.rows) // max(1, self.virtual_size.height))
            self._go_towards(max(before + n_rows, self.row_index))

    def action_cursor_down(self) -> None:
        """Go down a row, and from the last one of all to the first."""
        if self.is_complete or self._position < len(self.rows) - 1:
            super().action_cursor_down()
        else:
            self._go_towards(self._position + 1)

    def action_cursor_up(self) -> None:
        if self.row_index == 0:
            self.action_last()
        else:
            super().action_cursor_up()

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        if highlighted is not None and self.row_index != len(self.rows) - 1:
            self._goal = None  # the user moved elsewhere
        if self.row_index == 0:
            self.scroll_to(y=0, animate=False)  # its heading too
        self._request_rows()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value:
            self._request_rows()

    @property
    def _position(self) -> float:
        return self._goal if self._goal is not None else self.row_index or 0

    def _go_towards(self, goal: float) -> None:
        """Highlight row `goal`, or the last loaded one until it is loaded."""
        is_loaded = self.is_complete or goal < len(self.rows)
        if not self.rows:
            return
        self.row_index = int(min(goal, len(self.rows) - 1))
        self._goal = None if is_loaded else goal
        self._request_rows()

    def _request_rows(self) -> None:
        n_visible = self.size.height  # 0 before the first layout
        is_near_end = n_visible > 0 and (
            (self.row_index is not None and self.row_index >= len(self.rows) - n_visible)
            or self.scroll_y >= self.max_scroll_y - n_visible
        )
        needs_rows = not self.is_complete and (self._goal is not None or is_near_end)
        if needs_rows and not self._has_requested:
            self._has_requested = True
            self.post_message(self.RowsNeeded())
