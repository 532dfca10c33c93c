"""Rows of chats."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console

from app.chat.conversation import Chat, MessageContent
from app.chat.store.chat_store import ChatStore
from app.chat.store.search import Snippet
from tui.history.chat_list import ChatQuery, ChatRowVisual, HistoryRow, query_rows, row_text

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


NOW = datetime(2026, 11, 22, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))


def test_days_begin_at_midnight_in_local_time():
    for n_days, day in ((1, 22), (7, 16)):
        since_ms = ChatQuery(n_days=n_days).filter(NOW).since_ms
        assert since_ms == datetime(2026, 11, day, tzinfo=NOW.tzinfo).timestamp() * 1000
    assert ChatQuery().filter(NOW).since_ms is None


@pytest.mark.parametrize("chat_query", [ChatQuery(typed="soup"), ChatQuery()], ids=["search", "list"])
def test_rows_that_follow_those_that_are_shown_make_the_whole_list(tmp_path, chat_query):
    with ChatStore(tmp_path) as store:
        for number in range(10):
            chat_id = store.chats.create(title=str(number)).id
            store.messages.add(chat_id, None, MessageContent(role="user", content="soup"))
        shown = []
        while more := query_rows(chat_query, NOW, shown, store, 3):
            shown += more
    assert sorted(row.chat.title for row in shown) == [str(number) for number in range(10)]


def test_a_list_that_hides_chats_knows_it():
    assert not ChatQuery(typed="  ").is_narrowed
    assert all(
        w.is_narrowed
        for w in (ChatQuery(typed="a"), ChatQuery(model=""), ChatQuery(n_days=1), ChatQuery(is_archived=True))
    )
