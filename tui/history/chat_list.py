"""The list of chats, loaded in pages as the user scrolls."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.css.styles import RulesMap
from textual.message import Message
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, RichVisual, Visual
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.chat.chats import PAGE_SIZE
from app.chat.conversation import Chat
from app.chat.search import Snippet
from app.common.terminal import printable, printable_line
from tui.history.query import HistoryRow

_MODEL_CELLS = 18
_MATCH = "bold underline"
_MOMENT_CELLS = len("2026-01-01 12:00")
_MOST_AT_ONCE = 1000
_ALL_AT_ONCE = 20_000  # rows towards the end: less work than many pages, without a visible pause


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
        return 1 if _found_in_message(self._row) is None else 2


def row_text(row: HistoryRow) -> Table:
    """Return a row: title, model and time, then the match in a message."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_MODEL_CELLS, justify="right")
    grid.add_column(no_wrap=True)
    chat, found = row.chat, _found_in_message(row)
    is_title = row.snippet is not None and found is None
    title = _marked(row.snippet) if is_title and row.snippet else Text(printable_line(chat.title) or "(untitled)")
    title.append(" [archived]" if chat.is_archived else "", "dim")
    model = Text(printable_line(chat.model), "dim")
    activity = f"● {row.activity}".rjust(_MOMENT_CELLS)
    moment = Text(activity, "bold") if row.activity else Text(_moment(chat), "dim")
    grid.add_row(Text("◆" if chat.is_pinned else ""), title, model, moment)
    if found is not None:
        grid.add_row(Text(""), _marked(found), Text(""), Text(""))
    return grid


def _found_in_message(row: HistoryRow) -> Snippet | None:
    """Return the match if it is in a message, not in the title."""
    return row.snippet if row.message_id is not None else None


def _marked(snippet: Snippet) -> Text:
    """Return the snippet as one line with its matches highlighted."""
    text, end = Text(), 0
    for begin, after in snippet.matches:
        text.append(_one_line(snippet.text[end:begin])).append(_one_line(snippet.text[begin:after]), _MATCH)
        end = after
    return text.append(_one_line(snippet.text[end:]))


def _one_line(piece: str) -> str:
    return re.sub(r"\s+", " ", printable(piece))


def _moment(chat: Chat) -> str:
    return f"{datetime.fromtimestamp(chat.updated_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M}"


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
        """The highlighted row."""
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
        """Go to the last row of all, loaded or not."""
        self._go_towards(math.inf)

    def action_page_down(self) -> None:
        """Go down a page, loaded or not."""
        before = self._position
        super().action_page_down()  # type: ignore[no-untyped-call]
        if not self.is_complete and self.highlighted == len(self.rows) - 1:
            self._go_towards(max(before + self._n_rows_a_page, self.highlighted))

    def action_cursor_down(self) -> None:
        """Go down a row, and from the last one of all to the first."""
        if self.is_complete or self._position < len(self.rows) - 1:
            super().action_cursor_down()
        else:
            self._go_towards(self._position + 1)

    def action_cursor_up(self) -> None:
        """Go up a row, and from the first one to the last one of all."""
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
        """The current or pending position of the highlight."""
        return self._goal if self._goal is not None else self.highlighted or 0

    @property
    def _n_rows_a_page(self) -> int:
        """The number of rows per screen height; some have two lines."""
        return max(1, self.size.height * len(self.rows) // max(1, self.virtual_size.height))

    def _go_towards(self, goal: float) -> None:
        """Highlight row `goal`, or the last loaded one until it is loaded."""
        is_loaded = self.is_complete or goal < len(self.rows)
        self.highlighted = int(min(goal, len(self.rows) - 1))
        self._goal = None if is_loaded else goal
        self._request_rows()

    def _is_near_end(self) -> bool:
        if not self.size.height:
            return False  # no layout yet
        is_near = self.highlighted is not None and self.highlighted >= len(self.rows) - self.size.height
        return is_near or self.scroll_y >= self.max_scroll_y - self.size.height

    def _request_rows(self) -> None:
        needs_rows = not self.is_complete and (self._goal is not None or self._is_near_end())
        if needs_rows and not self._has_requested:
            self._has_requested = True
            self.post_message(self.RowsNeeded())
