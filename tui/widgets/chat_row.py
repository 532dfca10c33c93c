"""A row of the list of chats, drawn when it comes into view: how high it is, is known before."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, RichVisual, Visual
from textual.widget import Widget

from app.chat.chat import Chat
from app.chat.search import Snippet
from app.terminal import printable, printable_line
from tui.shelf import Row

__all__ = ["ChatRow", "row_text"]

_MODEL_CELLS = 18
_MATCH = "bold underline"


class ChatRow(Visual):
    """One row. Textual asks every row of a list how high it is, and would draw all of them for that."""

    def __init__(self, widget: Widget, row: Row) -> None:
        self._widget = widget
        self._row = row

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return RichVisual(self._widget, row_text(self._row)).render_strips(width, height, style, options)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:  # noqa: ARG002
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:  # noqa: ARG002
        return 1 if _found_in_message(self._row) is None else 2


def row_text(row: Row) -> Table:
    """Return what stands in a row: title, model and time, then the words that were found in a message."""
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
    grid.add_row(Text("◆" if chat.is_pinned else ""), title, model, Text(_moment(chat), "dim"))
    if found is not None:
        grid.add_row(Text(""), _marked(found), Text(""), Text(""))
    return grid


def _found_in_message(row: Row) -> Snippet | None:
    """What was found, if that was in a message and not in the title."""
    return row.snippet if row.message_id is not None else None


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
