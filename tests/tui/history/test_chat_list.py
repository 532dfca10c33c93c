"""Rows of chats."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from app.chat.conversation import Chat, MessageContent
from app.chat.store.chat_store import ChatStore
from app.chat.store.search import Snippet
from tui.history.chat_list import ChatQuery, ChatRowVisual, HistoryRow, query_rows, row_lines

CHAT = Chat(id=1, title="A title of some words that does not fit into few cells", created_ms=1, updated_ms=1)
FOUND = Snippet("words\nthat were\tfound", ((0, 5),))
ROWS = {
    "plain": HistoryRow(CHAT),
    "by its title": HistoryRow(CHAT, 12, None, FOUND),
    "by a message": HistoryRow(CHAT, 12, 7, FOUND),
}


NOW = datetime(2026, 11, 22, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))


@pytest.mark.parametrize("width", [5, 20, 40, 120])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_its_announced_height_and_width_without_being_drawn(name, width):
    drawn = row_lines(ROWS[name], width, NOW, shows_model=True)
    assert ChatRowVisual(None, ROWS[name]).get_height({}, width) == len(drawn)
    assert width < 15 or drawn[0].cell_length == width


@pytest.mark.parametrize(
    ("width", "shows_model", "words"),
    [
        (100, True, "Soup qwen3 12 messages yesterday"),
        (100, False, "Soup 12 messages yesterday"),
        (66, True, "Soup 12 messages yesterday"),
        (36, True, "Soup yesterday"),
    ],
)
def test_a_row_says_how_many_messages_which_model_and_when_as_far_as_there_is_room(width, shows_model, words):
    moment_ms = int((NOW - timedelta(hours=10)).timestamp() * 1000)
    row = HistoryRow(Chat(id=1, title="Soup", created_ms=1, updated_ms=moment_ms, model="qwen3"), 12)
    (line,) = row_lines(row, width, NOW, shows_model=shows_model)
    assert line.plain.split() == words.split()


@pytest.mark.parametrize("activity", ["asking", "answering"])
def test_what_a_chat_does_takes_the_place_of_when_it_was(activity):
    (line,) = row_lines(HistoryRow(CHAT, activity=activity), 60, NOW, shows_model=False)
    assert line.plain.rstrip().endswith(f"● {activity}")


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
