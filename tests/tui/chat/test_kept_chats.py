"""Saved chats: restored after quitting, stopping and kills, in every branch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat import repository as repository_module
from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.repository import AnswerTarget, SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from quantizer.system.errors import StorageError
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tui.chat.transcript.transcript import Transcript


def _stored(data_dir: Path) -> list[Message]:
    with ChatStore(data_dir) as store:
        chat = store.chats.latest()
        return list(store.messages.of(chat.id)) if chat else []


def _shown(data_dir: Path) -> list[tuple[str, str]]:
    with ChatStore(data_dir) as store:
        chat = store.chats.latest()
        assert chat is not None
        return [(message.role, message.content) for message in store.transcripts.read(chat.id).branch]


@pytest.mark.slow
async def test_a_chat_can_be_continued_after_quitting(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("Who are you?")
        await user.sees("Hello.", "48 tokens a second")
    later = ScriptedClient(ScriptedReply(deltas=("Still me.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(later, repository=repository) as user:
        await user.sees("Who are you?", "Hello.")
        await user.asks("And now?")
        await user.sees("Still me.")
    assert [message.content for message in later.requests[0]] == ["Who are you?", "Hello.", "And now?"]
    assert [content for _, content in _shown(tmp_path)] == ["Who are you?", "Hello.", "And now?", "Still me."]
    first_answer = _stored(tmp_path)[1]
    assert (first_answer.model, first_answer.stats["decode_tokens_per_s"]) == ("guide", 48.0)


async def test_what_is_cached_of_a_saved_chat_bears_its_name_from_the_first_question_on(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Who are you?")
        await user.sees("Hello.")
    with ChatStore(tmp_path) as store:
        (chat,) = store.chats.page()
    assert set(client.cached_as) == {chat.prompt_cache_key}


async def test_nothing_of_a_chat_that_is_not_saved_is_cached_on_the_disk(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("Who are you?")
        await user.sees("Hello.")
    assert set(client.cached_as) == {"in_memory"}


async def test_a_stopped_answer_is_saved_as_partial(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Kept ", "half ", "never"), pause_after=2))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("go")
        await user.sees("Kept half")
        await user.presses("escape")
        await user.sees("stopped")
    assert [(message.content, message.state) for message in _stored(tmp_path)][1:] == [
        ("Kept half ", MessageState.PARTIAL)
    ]


@pytest.mark.slow
async def test_quitting_during_an_answer_keeps_its_text(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Half.", "never"), pause_after=1))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("go")
        await user.sees("Half.")
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("go", "Half.", "stopped")


@pytest.mark.slow
async def test_an_answer_made_again_is_a_sibling_of_the_first(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("again?")
        await user.sees("First try.")
        await user.presses("ctrl+r")
        await user.sees("Second try.")
    question, first, second = _stored(tmp_path)
    assert first.parent_id == second.parent_id == question.id
    assert first.content == "First try."
    assert _shown(tmp_path) == [("user", "again?"), ("assistant", "Second try.")]


def _write_long_chat(data_dir: Path, n_questions: int) -> int:
    with ChatStore(data_dir) as store:
        chat, leaf_id = store.chats.create(), None
        for number in range(n_questions):
            for role in ("user", "assistant"):
                leaf_id = store.messages.add(
                    chat.id, leaf_id, MessageContent(role=role, content=f"{role} {number}.")
                ).id
    return chat.id


@pytest.mark.slow
async def test_a_long_chat_is_shown_from_its_end_to_its_beginning_and_sent_whole(open_app, tmp_path):
    _write_long_chat(tmp_path, 50)
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("user 49.", "assistant 49.")
        assert len(user.app.screen.query("MessageView")) < 40
        for number in (44, 41, 38):
            await user.presses("pageup")
            await user.sees(f"user {number}.")
        await user.presses("ctrl+home")
        await user.sees("user 0.")
        await user.asks("on")
        await user.sees("on", "Hello.", "assistant 49.")
    assert len(client.requests[0]) == 101


@pytest.mark.slow
async def test_page_keys_pressed_before_the_messages_above_are_mounted_scroll_as_far_as_later_ones(open_app, tmp_path):
    _write_long_chat(tmp_path, 50)
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.until(lambda: len(user.app.screen.query("MessageView")) > 0, "no message is mounted")
        transcript = user.app.screen.query_one(Transcript)
        for _ in range(3):
            transcript.scroll_pages(-1)
        await user.sees("assistant 38.")


@pytest.mark.slow
async def test_a_chat_is_opened_at_any_of_its_messages(open_app, tmp_path):
    chat_id = _write_long_chat(tmp_path, 50)
    with ChatStore(tmp_path) as store:
        wanted = store.messages.of(chat_id)[31]
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("assistant 49.")
        await user.app.open_chat(chat_id, wanted.id)
        await user.sees("assistant 15.", "copy")
        assert "assistant 49." not in user.screen_text


@pytest.mark.slow
async def test_a_new_chat_is_another_one_and_the_old_one_stays(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("the first")
        await user.sees("Hello.")
        await user.presses("ctrl+n")
        await user.asks("the second")
        await user.sees("Hello.")
    with ChatStore(tmp_path) as store:
        assert sorted(chat.title for chat in store.chats.page()) == ["the first", "the second"]


async def test_the_system_prompt_comes_back_with_the_chat(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("/system Be kind.")
        await user.asks("hi")
        await user.sees("Hello.")
    async with SqliteChatRepository(tmp_path) as repository:
        assert (await repository.open()).conversation.settings.system == "Be kind."


@pytest.mark.slow
async def test_an_unusable_store_is_reported_and_no_question_is_lost(open_app, tmp_path):
    (tmp_path / "chats.db").write_bytes(b"my diary" * 1000)
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("The file is not a database.", "Nothing was deleted")
        await user.asks("hi")
        await user.sees("hi", "No answer")


@pytest.mark.slow
async def test_an_unsaved_question_is_saved_when_it_is_asked_again(open_app, tmp_path, monkeypatch):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Hello.")
        with monkeypatch.context() as full:
            full.setattr(repository_module, "_prepare", _fail)
            await user.asks("second")
            await user.sees("The disk is full.", "No answer")
        await user.presses("ctrl+r")
        await user.no_longer_sees("The disk is full.")
        await user.sees("ready")
    assert [content for _, content in _shown(tmp_path)] == ["first", "Hello.", "second", "Hello."]
    assert len(client.requests) == 2


def _fail(*_: object) -> None:
    raise StorageError("The disk is full.")


async def test_an_imported_chat_can_be_continued(tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create(title="imported")
        store.messages.add(chat.id, None, MessageContent(role="assistant", content="How can I help?"))
    async with SqliteChatRepository(tmp_path) as repository:
        opened = await repository.open()
        conversation, stored = opened.conversation, opened.stored
        assert conversation.last_answer == "How can I help?"
        question = await stored.add_message(conversation.leaf_id, MessageContent(role="user", content="like this"))
        async with stored.writing(AnswerTarget(question.id, "guide")) as writer:
            writer.update(replace(writer.message, content="Fine."))
    assert [content for _, content in _shown(tmp_path)] == ["How can I help?", "like this", "Fine."]


@pytest.mark.slow
async def test_another_chat_is_opened_and_continued(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Of soup.",)), ScriptedReply(deltas=("Of bread.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("About soup?")
        await user.sees("Of soup.", "48 tokens a second")
        await user.presses("ctrl+n")
        await user.no_longer_sees("Of soup.")
        await user.asks("About bread?")
        await user.sees("Of bread.", "48 tokens a second")
        with ChatStore(tmp_path) as store:
            soup = next(chat for chat in store.chats.page() if "soup" in chat.title)
        await user.app.open_chat(soup.id)
        await user.sees("Of soup.")
        assert "Of bread." not in user.screen_text
        await user.asks("More?")
        await user.sees("More?", "48 tokens a second")
    assert [message.content for message in client.requests[-1]] == ["About soup?", "Of soup.", "More?"]


@pytest.mark.slow
async def test_messages_are_not_mounted_for_a_chat_that_was_closed_meanwhile(open_app, tmp_path):
    """Between the release of a lock and the next holder it is free, and yet to be waited for."""
    _write_long_chat(tmp_path, 50)
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("assistant 49.")
        transcript = user.app.screen.query_one(Transcript)
        await transcript._one_at_a_time.acquire()
        transcript.set_reactive(Transcript.scroll_y, 0)
        clearing = asyncio.create_task(transcript.clear())
        await asyncio.sleep(0)
        transcript._one_at_a_time.release()
        await transcript._fill_window()
        await clearing
        assert not transcript.entries
        assert len(transcript._window) == 0


@pytest.mark.slow
async def test_scrolling_up_faster_than_messages_come_stays_where_it_got_to(open_app, tmp_path):
    _write_long_chat(tmp_path, 50)
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("assistant 49.")
        transcript = user.app.screen.query_one("Transcript")
        await user.until(lambda: transcript.max_scroll_y > 0, "all fits")
        transcript.scroll_to(y=0, animate=False, immediate=True)  # the first row of what is there by now
        await user.until(lambda: transcript.scroll_y >= transcript.size.height, "nothing came above")
        assert "user 0." not in user.screen_text
