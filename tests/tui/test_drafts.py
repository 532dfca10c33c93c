"""Drafts and questions are restored: in another chat, after quitting, after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.chat.conversation import Attachment, MessageContent
from app.chat.repository import SqliteChat, SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from quantizer.system.errors import StorageError
from tests.app.client.scripted_client import ScriptedClient


def _draft(data_dir: Path, chat_id: int | None = None) -> str:
    with ChatStore(data_dir) as store:
        return store.drafts.get(chat_id).content


def _prompt(user) -> str:
    return str(user.app.screen.query_one("PromptInput").text)


async def test_a_draft_is_on_the_disk_while_the_app_still_runs(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("ready")
        await user.types("half a ques")
        await user.until(lambda: _draft(tmp_path) == "half a ques", "kept")


@pytest.mark.slow
async def test_a_draft_is_there_again_after_quitting_at_once(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("ready")
        await user.types("to be continued")
        await user.presses("ctrl+q")
        await user.leaves()
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("to be continued")
        await user.types(", now")
        assert _prompt(user) == "to be continued, now"


@pytest.mark.slow
async def test_attachments_of_a_draft_are_restored_after_quitting_and_sent(open_app, tmp_path):
    notes = "\n".join(f"{number}. Buy milk." for number in range(20))
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("ready")
        await user.pastes(notes)
        await user.sees("[pasted 1")
        await user.types("read")
        await user.presses("ctrl+q")
        await user.leaves()
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("[pasted 1", "of the context ×]", "read", "ready")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.no_longer_sees("tokens ×]")
    assert "19. Buy milk." in client.requests[0][0].content
    with ChatStore(tmp_path) as store:
        assert store.drafts.get(1).is_empty


@pytest.mark.slow
async def test_attachments_of_a_draft_stay_with_its_chat_until_removed(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("the first chat")
        await user.sees("Hello.", "ready")
        await user.pastes("a long text\n" * 20)
        await user.sees("[pasted 1")
        await user.presses("ctrl+n")
        await user.no_longer_sees("[pasted 1")
        await user.app.open_chat(1)
        await user.sees("[pasted 1")
        await user.presses("backspace")
        await user.no_longer_sees("[pasted 1")
        await user.presses("ctrl+q")
        await user.leaves()
    with ChatStore(tmp_path) as store:
        assert store.drafts.get(1).is_empty


@pytest.mark.slow
async def test_each_chat_has_its_own_draft(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("the first chat")
        await user.sees("Hello.")
        await user.types("about the first")
        await user.presses("ctrl+n")
        await user.no_longer_sees("about the first")
        await user.types("about another")
        await user.app.open_chat(1)
        await user.sees("the first chat", "about the first")
        await user.presses("ctrl+n")
        await user.sees("about another")


@pytest.mark.slow
async def test_what_was_sent_is_no_draft_any_more(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("ready")
        await user.types("asked")
        await user.until(lambda: _draft(tmp_path) == "asked", "kept")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.presses("ctrl+n")
        await user.no_longer_sees("Hello.")
        assert _prompt(user) == ""
    assert (_draft(tmp_path), _draft(tmp_path, 1)) == ("", "")


async def test_a_question_of_another_day_is_recalled(open_app, tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create()
        for question in ("long ago", "yesterday"):
            store.messages.add(chat.id, None, MessageContent(role="user", content=question))
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("yesterday")
        await user.asks("today")
        await user.sees("Hello.")
        recalled = []
        for _ in range(3):
            await user.presses("up")
            recalled.append(_prompt(user))
    assert recalled == ["today", "yesterday", "long ago"]


@pytest.mark.slow
async def test_a_draft_that_comes_late_makes_way_for_what_is_typed_and_can_be_recalled(open_app, tmp_path, monkeypatch):
    with ChatStore(tmp_path) as store:
        store.drafts.save(
            None, MessageContent(content="from yesterday", attachments=(Attachment("notes.md", "Buy milk."),))
        )
    async with SqliteChatRepository(tmp_path) as repository:
        read, has_typed = SqliteChat.draft, asyncio.Event()

        async def read_late(chat: SqliteChat) -> MessageContent:
            await has_typed.wait()
            return await read(chat)

        monkeypatch.setattr(SqliteChat, "draft", read_late)
        async with open_app(ScriptedClient(), repository=repository) as user:
            user.app.screen.prompt.put("new")
            has_typed.set()
            await user.sees("new", "[notes.md")
            await user.until(lambda: _draft(tmp_path) == "new", "kept")
            await user.presses(*["backspace"] * 3, "up")
            assert _prompt(user) == "from yesterday"


@pytest.mark.slow
async def test_unreadable_drafts_are_reported(open_app, tmp_path, monkeypatch):
    async def broken(self) -> str:
        raise StorageError("The disk is gone.", "Bring it back.")

    monkeypatch.setattr(SqliteChat, "draft", broken)
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("The disk is gone.")
        await user.asks("Anyway?")
        await user.sees("Hello.")


@pytest.mark.parametrize("typed", ["/new", "/system Be brief"])
async def test_a_command_is_no_draft(open_app, tmp_path, typed):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("ready")
        await user.asks(typed)
        await user.presses("ctrl+q")
        await user.leaves()
    assert _draft(tmp_path) == ""
