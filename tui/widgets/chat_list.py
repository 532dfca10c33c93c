"""The list of chats: a row each, with what was found in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.chat.chat import Chat
from app.chat.search import Snippet
from app.terminal import printable, printable_line
from tui.shelf import Row

__all__ = ["ChatList", "row_text"]

_MODEL_CELLS = 18
_MATCH = "bold underline"


class ChatList(OptionList):
    """Rows in the order in which they were given; posts NearEnd where more are wanted, once for each that came."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("enter", "select", "Open", id="chats-open", tooltip="Go on with the chat"),
    )
    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    @dataclass
    class NearEnd(Message):
        """The person is near the end of what is shown."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.rows: list[Row] = []
        self._has_asked = False

    @property
    def row(self) -> Row | None:
        """The row that is highlighted."""
        return self.rows[self.highlighted] if self.highlighted is not None else None

    def show(self, rows: Sequence[Row]) -> None:
        """Show other rows; the highlight stays with its chat or, where that has gone, at its place."""
        chat_id, index = (self.row.chat.id if self.row else None), self.highlighted or 0
        self.clear_options()
        self.rows = []
        self.add(rows)
        places = {row.chat.id: place for place, row in enumerate(rows)}
        if rows:
            self.highlighted = places.get(chat_id or 0, min(index, len(rows) - 1))

    def add(self, rows: Sequence[Row]) -> None:
        """Show more rows after the others."""
        self.rows += rows
        self.add_options([Option(row_text(row), str(row.chat.id)) for row in rows])
        self._has_asked = not rows

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        if highlighted is not None and highlighted >= len(self.rows) - self.size.height:
            self._ask()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and new_value >= self.max_scroll_y - self.size.height:
            self._ask()

    def _ask(self) -> None:
        if not self._has_asked:
            self._has_asked = True
            self.post_message(self.NearEnd())


def row_text(row: Row) -> Table:
    """Return what stands in a row: title, model and time, then the words that were found in a message."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_MODEL_CELLS, justify="right")
    grid.add_column(no_wrap=True)
    chat, snippet = row.chat, row.snippet
    is_title = snippet is not None and row.message_id is None
    title = _marked(snippet) if is_title and snippet else Text(printable_line(chat.title) or "(untitled)")
    title.append(" [archived]" if chat.is_archived else "", "dim")
    model = Text(printable_line(chat.model), "dim")
    grid.add_row(Text("◆" if chat.is_pinned else ""), title, model, Text(_moment(chat), "dim"))
    if snippet is not None and not is_title:
        grid.add_row(Text(""), _marked(snippet), Text(""), Text(""))
    return grid


def _marked(snippet: Snippet) -> Text:
    """The snippet as one line, its matches marked."""
    text, end = Text(), 0
    for begin, after in snippet.matches:
        text.append(_one_line(snippet.text[end:begin])).append(_one_line(snippet.text[begin:after]), _MATCH)
        end = after
    return text.append(_one_line(snippet.text[end:]))


def _one_line(piece: str) -> str:
    return re.sub(r"\s+", " ", printable(piece))


def _moment(chat: Chat) -> str:
    return f"{datetime.fromtimestamp(chat.updated_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M}"
