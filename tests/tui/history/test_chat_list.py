"""Rows of chats."""

from __future__ import annotations

import pytest
from rich.console import Console

from app.chat.conversation import Chat
from app.chat.search import Snippet
from tui.history.chat_list import ChatRowVisual, row_text
from tui.history.query import HistoryRow

CHAT = Chat(id=1, title="A title of some words that does not fit into few cells", created_ms=1, updated_ms=1)
FOUND = Snippet("words\nthat were\tfound", ((0, 5),))
ROWS = {
    "plain": HistoryRow(CHAT),
    "by its title": HistoryRow(CHAT, None, FOUND),
    "by a message": HistoryRow(CHAT, 7, FOUND),
}


@pytest.mark.parametrize("width", [20, 40, 120])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_its_announced_height_without_being_drawn(name, width):
    drawn = Console(width=width).render_lines(row_text(ROWS[name]))
    assert ChatRowVisual(None, ROWS[name]).get_height({}, width) == len(drawn)
