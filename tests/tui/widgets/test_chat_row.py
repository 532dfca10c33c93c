"""Rows of chats."""

from __future__ import annotations

import pytest
from rich.console import Console

from app.chat.chat import Chat
from app.chat.search import Snippet
from tui.shelf import Row
from tui.widgets.chat_row import ChatRow, row_text

CHAT = Chat(id=1, title="A title of some words that does not fit into few cells", created_ms=1, updated_ms=1)
FOUND = Snippet("words\nthat were\tfound", ((0, 5),))
ROWS = {"plain": Row(CHAT), "by its title": Row(CHAT, None, FOUND), "by a message": Row(CHAT, 7, FOUND)}


@pytest.mark.parametrize("width", [20, 40, 120])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_as_high_as_it_says_without_being_drawn(name, width):
    drawn = Console(width=width).render_lines(row_text(ROWS[name]))
    assert ChatRow(None, ROWS[name]).get_height({}, width) == len(drawn)
