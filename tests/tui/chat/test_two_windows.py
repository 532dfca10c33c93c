"""Two windows with one chat: each says when the other wrote there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

pytestmark = pytest.mark.slow

BRANCHED = "Another window wrote here meanwhile"


@pytest.fixture
def other_window(tmp_path: Path) -> Iterator[ChatStore]:
    with ChatStore(tmp_path) as store:
        yield store


def _ask(store: ChatStore, question: str, answer: str) -> None:
    chat = store.chats.latest()
    asked = store.messages.add(chat.id, chat.leaf_id, MessageContent(role="user", content=question))
    store.messages.add(chat.id, asked.id, MessageContent(role="assistant", content=answer, model="guide"))


async def test_a_question_beside_another_window_says_that_it_begins_a_branch_and_goes_to_the_newest_on_request(
    open_app, tmp_path, other_window
):
    replies = [ScriptedReply(deltas=(text,)) for text in ("One.", "Beside.", "After it.")]
    client = ScriptedClient(*replies)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("One.", "ready")
        _ask(other_window, "from there", "Elsewhere.")
        await user.asks("mine")
        await user.sees(BRANCHED, "Beside.", "2/2", "ready")
        assert "Elsewhere." not in user.screen_text
        await user.asks("/newest")
        await user.sees("Elsewhere.", "After it.", "ready")
        await user.asks("/newest")
        await user.sees("This is the newest message.")
    contents = [[message.content for message in request] for request in client.requests]
    assert contents == [
        ["first"],
        ["first", "One.", "mine"],
        ["first", "One.", "from there", "Elsewhere.", "mine"],
    ]


async def test_a_question_is_no_branch_where_another_window_wrote_elsewhere_in_the_chat(
    open_app, tmp_path, other_window
):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        other_window.messages.add(
            other_window.chats.latest().id, None, MessageContent(role="user", content="another begin")
        )
        await user.asks("mine")
        await user.until(lambda: len(client.requests) == 2, "nothing was asked")
        await user.sees("ready")
        assert BRANCHED not in user.screen_text
        await user.asks("/newest")
        await user.sees("This is the newest message.")


async def test_who_comes_back_to_a_window_sees_what_another_one_wrote(open_app, tmp_path, other_window):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        user.app.app_focus = False
        _ask(other_window, "from there", "Elsewhere.")
        user.app.app_focus = True
        await user.sees("from there", "Elsewhere.", "Another window went on with this chat.")
        await user.asks("mine")
        await user.until(lambda: len(client.requests) == 2, "nothing was asked")
    assert [message.content for message in client.requests[1]] == [
        "first",
        "Hello.",
        "from there",
        "Elsewhere.",
        "mine",
    ]


def _begin(store: ChatStore, question: str, content: str) -> tuple[int, Message]:
    """Ask in another window, which writes an answer from now on."""
    chat = store.chats.latest() or store.chats.create(title=question)
    asked = store.messages.add(chat.id, chat.leaf_id, MessageContent(content=question), store.writers.window)
    begun = MessageContent(role="assistant", content=content, model="guide", state=MessageState.PARTIAL)
    return chat.id, store.messages.add(chat.id, asked.id, begun, store.writers.window)


def _end(store: ChatStore, chat_id: int, message: Message, content: str) -> None:
    store.messages.finish(message.id, replace(message, content=content, state=MessageState.FINISHED))
    store.writers.mark(chat_id, None)


async def test_an_answer_of_another_window_is_followed_until_it_ends_and_cannot_be_continued(
    open_app, tmp_path, other_window
):
    chat_id, message = _begin(other_window, "from there", "Once")
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), (120, 30), repository) as user:
        await user.sees("Once", "answering in another window", "another window answers", "◐")
        assert "stopped" not in user.screen_text
        await user.asks("/continue")
        await user.sees("its answer goes on by itself")
        other_window.messages.write(message.id, "Once upon", "hm")
        await user.sees("Once upon", "thought")
        _end(other_window, chat_id, message, "Once upon a time.")
        await user.sees("Once upon a time.")
        await user.no_longer_sees("another window")
        await user.no_longer_sees("◐")


async def test_an_answer_was_stopped_once_its_window_is_dead(open_app, tmp_path, other_window):
    client = ScriptedClient(ScriptedReply(deltas=(" on",)))
    _begin(other_window, "from there", "Half")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (120, 30), repository) as user:
        await user.sees("Half", "answering in another window")
        other_window.close()  # which gives up its lock, as the end of its process does
        await user.sees("stopped")
        await user.no_longer_sees("another window")
        await user.asks("/continue")
        await user.sees("Half on", "ready")


async def test_a_question_waits_for_the_end_of_another_windows_answer(open_app, tmp_path, other_window):
    client = ScriptedClient(ScriptedReply(deltas=("Mine.",)))
    chat_id, message = _begin(other_window, "from there", "Half")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (120, 30), repository) as user:
        await user.sees("answering in another window")
        await user.asks("mine")
        await user.sees("your question waits until it has ended")
        other_window.messages.write(message.id, "Half of")
        await user.sees("Half of")
        assert client.requests == []
        _end(other_window, chat_id, message, "Half of it.")
        await user.sees("Half of it.", "Mine.", "ready")
        assert BRANCHED not in user.screen_text
    assert [message.content for message in client.requests[0]] == ["from there", "Half of it.", "mine"]


async def test_a_question_that_waits_for_another_window_can_be_taken_back(open_app, tmp_path, other_window):
    client = ScriptedClient()
    _begin(other_window, "from there", "Half")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (120, 30), repository) as user:
        await user.sees("answering in another window")
        await user.asks("mine")
        await user.sees("your question waits until it has ended")
        await user.presses("escape")
        await user.until(lambda: user.app.screen.prompt.text == "mine", "it is not in the prompt")
    assert client.requests == []


async def test_a_question_that_waits_follows_the_next_question_of_the_other_window(open_app, tmp_path, other_window):
    client = ScriptedClient(ScriptedReply(deltas=("Mine.",)))
    chat_id, message = _begin(other_window, "from there", "Half")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (120, 30), repository) as user:
        await user.asks("mine")
        await user.sees("your question waits until it has ended")
        other_window.messages.finish(message.id, replace(message, content="Whole.", state=MessageState.FINISHED))
        _, second = _begin(other_window, "and then", "Ne")
        await user.sees("and then", "Ne")
        assert client.requests == []
        _end(other_window, chat_id, second, "Next.")
        await user.sees("Next.", "Mine.", "ready")
    assert [each.content for each in client.requests[0]] == ["from there", "Whole.", "and then", "Next.", "mine"]


async def test_other_windows_know_of_an_answer_as_long_as_it_runs(open_app, tmp_path, other_window):
    client = ScriptedClient(ScriptedReply(deltas=("Half", " done."), pause_after=1))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("why?")
        await user.sees("Half")
        chat = other_window.chats.latest()
        assert other_window.writers.of_chat(chat.id) == {chat.leaf_id}
        client.resume()
        await user.sees("Half done.", "ready")
        await user.until(lambda: not other_window.writers.of_chat(chat.id), "it is still marked")
        await user.asks("/retry")
        await user.sees("2/2", "Half")
        assert other_window.writers.of_chat(chat.id) == {chat.leaf_id + 1}
        await user.presses("escape")
        await user.until(lambda: not other_window.writers.of_chat(chat.id), "it is still marked")


async def test_undo_and_delete_wait_for_the_end_of_another_windows_answer(open_app, tmp_path, other_window):
    chat_id, message = _begin(other_window, "from there", "Half")
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), (120, 30), repository) as user:
        await user.sees("answering in another window")
        await user.asks("/undo")
        await user.sees("Another window is answering here. Wait until it has ended, or press Esc there.")
        await user.presses("escape", "ctrl+up", "delete")
        await user.sees("Another window is answering here.", "Half")
        _end(other_window, chat_id, message, "Half of it.")
        await user.sees("Half of it.")
        await user.presses("escape")
        await user.asks("/undo")
        await user.sees("Took the last question and its answer back.")
