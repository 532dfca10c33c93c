"""Two windows with one chat: each says when the other wrote there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.conversation import MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

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
