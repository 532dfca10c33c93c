from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import Attachment, MessageContent
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.chat.store.database import SCHEMA, STEPS
from app.common.database import migrate_to


def test_each_chat_has_a_draft_of_its_own(store: ChatStore) -> None:
    first, second = store.chats.create(), store.chats.create()
    store.drafts.save(first.id, MessageContent(content="half a question"))
    store.drafts.save(None, MessageContent(content="a new chat begins with"))
    assert [store.drafts.get(chat_id) for chat_id in (first.id, second.id, None)] == [
        MessageContent(content="half a question"),
        MessageContent(),
        MessageContent(content="a new chat begins with"),
    ]


def test_a_draft_is_replaced_and_forgotten_when_it_is_empty(store: ChatStore) -> None:
    chat = store.chats.create()
    for typed in ("a", "ab", ""):
        store.drafts.save(chat.id, MessageContent(content=typed))
        assert store.drafts.get(chat.id) == MessageContent(content=typed)


def test_what_goes_with_a_draft_is_kept_and_forgotten_with_it(store: ChatStore) -> None:
    chat = store.chats.create()
    notes = Attachment("notes.md", "Buy \ud800 milk.\n\x1b[2J")  # as a file may hold it, a lone surrogate too
    kept = Attachment("notes.md", "Buy \ufffd milk.\n\x1b[2J")
    for draft in (
        MessageContent(content="read", attachments=(notes,)),
        MessageContent(content="read it", attachments=(notes,)),
        MessageContent(content="", attachments=(notes,)),
    ):
        store.drafts.save(chat.id, draft)
        assert store.drafts.get(chat.id) == MessageContent(content=draft.content, attachments=(kept,))
    store.drafts.save(chat.id, MessageContent(content="alone"))
    assert store.drafts.get(chat.id) == MessageContent(content="alone")
    store.drafts.save(None, MessageContent(content="", attachments=(notes,)))
    store.drafts.save(None)
    assert store.drafts.get(None) == MessageContent()


def test_what_goes_with_a_draft_is_not_written_again_for_every_key(store: ChatStore, tmp_path: Path) -> None:
    large = Attachment("large", "x" * 1_000_000)
    for length in range(1, 20):
        store.drafts.save(None, MessageContent(content="y" * length, attachments=(large,)))
    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size < 2_000_000


def test_a_draft_stays_with_a_deleted_chat_and_goes_when_that_is_swept(store: ChatStore) -> None:
    chat = store.chats.create()
    store.drafts.save(chat.id, MessageContent(content="typed"))
    store.chats.delete(chat.id)
    assert store.drafts.get(chat.id) == MessageContent(content="typed")
    store.chats.purge_deleted(1 << 60)
    assert store.drafts.get(chat.id) == MessageContent()


def test_a_draft_changes_nothing_of_its_chat(store: ChatStore) -> None:
    chat = store.chats.create(title="as it was")
    store.drafts.save(chat.id, MessageContent(content="typed"))
    assert store.chats.get(chat.id) == chat


def test_chats_that_were_kept_before_there_were_drafts_are_brought_up_to_date(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None) as connection:
        migrate_to(connection, replace(SCHEMA, steps=STEPS[:1]))
        connection.execute("INSERT INTO chats (title, created_ms, updated_ms) VALUES ('old', 1, 1)")
    connection.close()
    with ChatStore(tmp_path) as store:
        old = store.chats.page()[0]
        store.drafts.save(old.id, MessageContent(content="typed"))
        assert (old.title, store.drafts.get(old.id)) == ("old", MessageContent(content="typed"))


def test_questions_of_all_chats_are_remembered_once_each_and_the_latest_last(store: ChatStore) -> None:
    for number, question in enumerate(("one", "two", "one", "three", "gone")):
        chat = store.chats.create()
        asked = store.messages.add(chat.id, None, MessageContent(role="user", content=question))
        store.messages.add(chat.id, asked.id, MessageContent(role="assistant", content=f"answer {number}"))
    store.chats.delete(chat.id)
    assert store.messages.recent_prompts(10) == ["two", "one", "three"]
    assert store.messages.recent_prompts(2) == ["one", "three"]
