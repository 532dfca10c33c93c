from __future__ import annotations

import sqlite3
from pathlib import Path

from app.chat.message import Utterance
from app.chat.schema import STEPS, migrate
from app.chat.store import FILE_NAME, ChatStore


def test_each_chat_has_a_draft_of_its_own(store: ChatStore) -> None:
    first, second = store.chats.create(), store.chats.create()
    store.drafts.keep(first.id, "half a question")
    store.drafts.keep(None, "a new chat begins with")
    assert [store.drafts.get(chat_id) for chat_id in (first.id, second.id, None)] == [
        "half a question",
        "",
        "a new chat begins with",
    ]


def test_a_draft_is_replaced_and_forgotten_when_it_is_empty(store: ChatStore) -> None:
    chat = store.chats.create()
    for typed in ("a", "ab", ""):
        store.drafts.keep(chat.id, typed)
        assert store.drafts.get(chat.id) == typed


def test_a_draft_stays_with_a_deleted_chat_and_goes_when_that_is_swept(store: ChatStore) -> None:
    chat = store.chats.create()
    store.drafts.keep(chat.id, "typed")
    store.chats.delete(chat.id)
    assert store.drafts.get(chat.id) == "typed"
    store.chats.sweep(1 << 60)
    assert store.drafts.get(chat.id) == ""


def test_a_draft_changes_nothing_of_its_chat(store: ChatStore) -> None:
    chat = store.chats.create(title="as it was")
    store.drafts.keep(chat.id, "typed")
    assert store.chats.get(chat.id) == chat


def test_chats_that_were_kept_before_there_were_drafts_are_brought_up_to_date(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None) as connection:
        migrate(connection, STEPS[:1])
        connection.execute("INSERT INTO chats (title, created_ms, updated_ms) VALUES ('old', 1, 1)")
    connection.close()
    with ChatStore(tmp_path) as store:
        old = store.chats.page()[0]
        store.drafts.keep(old.id, "typed")
        assert (old.title, store.drafts.get(old.id)) == ("old", "typed")


def test_questions_of_all_chats_are_remembered_once_each_and_the_latest_last(store: ChatStore) -> None:
    for number, question in enumerate(("one", "two", "one", "three", "gone")):
        chat = store.chats.create()
        asked = store.messages.add(chat.id, None, Utterance(role="user", content=question))
        store.messages.add(chat.id, asked.id, Utterance(role="assistant", content=f"answer {number}"))
    store.chats.delete(chat.id)
    assert store.messages.asked(10) == ["two", "one", "three"]
    assert store.messages.asked(2) == ["one", "three"]
