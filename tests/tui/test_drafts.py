"""What was typed is there again: in another chat, after quitting, after a kill; and so is what was asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.chat.conversation import Attachment, Draft, MessageContent
from app.chat.store import ChatStore
from app.client.fake import ScriptedClient
from quantizer.errors import StorageError
from tui.chat.repository import SqliteChatRepository


def _draft(data_dir: Path, chat_id: int | None = None) -> str:
    with ChatStore(data_dir) as store:
        return store.drafts.get(chat_id).text


def _prompt(person) -> str:
    return str(person.app.screen.query_one("PromptInput").text)


async def test_a_draft_is_on_the_disk_while_the_person_still_sits_there(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("ready")
        await person.types("half a ques")
        await person.until(lambda: _draft(tmp_path) == "half a ques", "kept")


async def test_a_draft_is_there_again_after_quitting_at_once(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("ready")
        await person.types("to be continued")
        await person.presses("ctrl+q")
        await person.leaves()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("to be continued")
        await person.types(", now")
        assert _prompt(person) == "to be continued, now"


async def test_what_goes_with_a_draft_is_there_again_after_quitting_and_is_sent(sitting, tmp_path):
    notes = "\n".join(f"{number}. Buy milk." for number in range(20))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("ready")
        await person.pastes(notes)
        await person.sees("[pasted 1")
        await person.types("read")
        await person.presses("ctrl+q")
        await person.leaves()
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("[pasted 1", "tokens ×]", "read", "ready")
        await person.presses("enter")
        await person.sees("Hello.")
        await person.no_longer_sees("tokens ×]")
    assert "19. Buy milk." in client.requests[0][0].content
    with ChatStore(tmp_path) as store:
        assert not store.drafts.get(1)


async def test_what_goes_with_a_draft_stays_with_its_chat_and_goes_when_it_is_taken_away(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.asks("the first chat")
        await person.sees("Hello.", "ready")
        await person.pastes("a long text\n" * 20)
        await person.sees("[pasted 1")
        await person.presses("ctrl+n")
        await person.no_longer_sees("[pasted 1")
        await person.app.open_chat(1)
        await person.sees("[pasted 1")
        await person.presses("backspace")
        await person.no_longer_sees("[pasted 1")
        await person.presses("ctrl+q")
        await person.leaves()
    with ChatStore(tmp_path) as store:
        assert not store.drafts.get(1)


async def test_each_chat_has_its_own_draft(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.asks("the first chat")
        await person.sees("Hello.")
        await person.types("about the first")
        await person.presses("ctrl+n")
        await person.no_longer_sees("about the first")
        await person.types("about another")
        await person.app.open_chat(1)
        await person.sees("the first chat", "about the first")
        await person.presses("ctrl+n")
        await person.sees("about another")


async def test_what_was_sent_is_no_draft_any_more(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("ready")
        await person.types("asked")
        await person.until(lambda: _draft(tmp_path) == "asked", "kept")
        await person.presses("enter")
        await person.sees("Hello.")
        await person.presses("ctrl+n")
        await person.no_longer_sees("Hello.")
        assert _prompt(person) == ""
    assert (_draft(tmp_path), _draft(tmp_path, 1)) == ("", "")


async def test_a_question_of_another_day_is_recalled(sitting, tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create()
        for question in ("long ago", "yesterday"):
            store.messages.add(chat.id, None, MessageContent(role="user", content=question))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("yesterday")
        await person.asks("today")
        await person.sees("Hello.")
        recalled = []
        for _ in range(3):
            await person.presses("up")
            recalled.append(_prompt(person))
    assert recalled == ["today", "yesterday", "long ago"]


async def test_a_draft_that_comes_late_makes_way_for_what_is_typed_and_can_be_recalled(sitting, tmp_path, monkeypatch):
    with ChatStore(tmp_path) as store:
        store.drafts.keep(None, Draft("from yesterday", (Attachment("notes.md", "Buy milk."),)))
    async with SqliteChatRepository(tmp_path) as keeper:
        read, has_typed = keeper.draft, asyncio.Event()

        async def read_late() -> Draft:
            await has_typed.wait()
            return await read()

        monkeypatch.setattr(keeper, "draft", read_late)
        async with sitting(ScriptedClient(), keeper=keeper) as person:
            person.app.screen.prompt.put("new")
            has_typed.set()
            await person.sees("new", "[notes.md")
            await person.until(lambda: _draft(tmp_path) == "new", "kept")
            await person.presses(*["backspace"] * 3, "up")
            assert _prompt(person) == "from yesterday"


async def test_person_hears_that_drafts_cannot_be_read(sitting, tmp_path, monkeypatch):
    async def broken(self) -> str:
        raise StorageError("The disk is gone.", "Bring it back.")

    monkeypatch.setattr(SqliteChatRepository, "draft", broken)
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("The disk is gone.")
        await person.asks("Anyway?")
        await person.sees("Hello.")


@pytest.mark.parametrize("typed", ["/new", "/system Be brief"])
async def test_a_command_is_no_draft(sitting, tmp_path, typed):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("ready")
        await person.asks(typed)
        await person.presses("ctrl+q")
        await person.leaves()
    assert _draft(tmp_path) == ""
