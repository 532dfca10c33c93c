"""Generated titles: when they are requested, parsed and stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.chat.titles import parse_title
from app.common.terminal import printable_line
from app.protocol.status import Occupancy
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import READY, ScriptedClient, ScriptedReply

IDLE = replace(READY, id="llama", occupancy=Occupancy(n_running=0, n_waiting=0, n_cells_used=0, n_cells=2048))
BUSY = replace(IDLE, occupancy=Occupancy(n_running=1, n_waiting=0, n_cells_used=9, n_cells=2048))
ANSWER = ScriptedReply(deltas=("They purr.",))
TITLE = ScriptedReply(deltas=('"Why ', 'cats\x1b[2J purr"\n', "Is that fine?"))


TITLES = {
    # as it was asked for
    "Why cats purr": "Why cats purr",
    '\n  **"Why cats purr."**\n\nShall I go on?': "Why cats purr",
    "Cats: why they purr": "Cats: why they purr",
    "Great Wall of China": "Great Wall of China",
    "Hello World in Rust": "Hello World in Rust",
    "OK buttons in Qt": "OK buttons in Qt",
    "Yes, Minister: a series": "Yes, Minister: a series",
    "What is a GGUF header?": "What is a GGUF header?",
    "Title case in English": "Title case in English",
    "猫はなぜゴロゴロいうのか": "猫はなぜゴロゴロいうのか",
    # with a label
    "Title: Why cats purr": "Why cats purr",
    "**Title:** Why cats purr": "Why cats purr",
    "# Title: Why cats purr": "Why cats purr",
    "Conversation title: Why cats purr": "Why cats purr",
    "Titel: Warum Katzen schnurren": "Warum Katzen schnurren",
    "标题：猫为什么打呼噜": "猫为什么打呼噜",
    '{"title": "Why cats purr"}': "Why cats purr",
    "<title>Why cats purr</title>": "Why cats purr",
    "Title - Why cats purr": "Why cats purr",
    # as small models say it
    "Sure! Here is a title for this conversation: Why cats purr": "Why cats purr",
    "Sure! Here's a title for the conversation:\n\n**Why cats purr**": "Why cats purr",
    'Certainly! A suitable title could be: "Why cats purr"': "Why cats purr",
    'A good title for this conversation would be "Why cats purr" because it is about cats.': "Why cats purr",
    'I would suggest "Why cats purr" as it is short.': "Why cats purr",
    "Sure, why cats purr": "why cats purr",
    "Here are some titles:\n1. Why cats purr\n2. Cats": "Why cats purr",
    '"Why cats purr" is the title of this conversation.': "Why cats purr",
    "The title is Why cats purr": "Why cats purr",
    "Why cats purr (3 words)": "Why cats purr",
    "The title of the conversation is: Why cats purr": "Why cats purr",
    # nothing sensible: the question stays
    "": "",
    "…\n": "",
    "\n\n**\n": "",
    "Title:": "",
    "Title of the conversation": "",
    "Untitled conversation": "",
    "New chat": "",
    "A title of two to six words.": "",
    "word " * 30: "",
    "I'm sorry, but as an AI language model I cannot give a title.": "",
    "Here is the answer": "",
    "Cats purr because the muscles of their larynx open and close the space around the vocal cords quickly.": "",
}


@pytest.mark.parametrize("answer", TITLES)
def test_the_title_is_found_in_what_a_model_says_around_it(answer):
    assert parse_title(answer) == TITLES[answer]


@pytest.mark.slow
async def test_where_the_answer_holds_no_title_the_question_stays_it(open_app, tmp_path):
    chatty = ScriptedReply(deltas=("I'm sorry, but I cannot ", "give a title to that."))
    client = ScriptedClient(ANSWER, chatty, model=IDLE)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Tell me of cats")
        await user.until(lambda: len(client.requests) == 2, "no title was asked for")
        await user.sees("They purr.", "ready")
    assert _titles(tmp_path) == ["Tell me of cats"]


@given(st.text())
def test_no_title_is_long_or_more_than_a_terminal_should_show(answer):
    title = parse_title(answer)
    assert len(title) <= 60
    assert title == printable_line(title)


def _titles(folder):
    with ChatStore(folder) as store:
        return [chat.title for chat in store.chats.page()]


@pytest.mark.slow
async def test_a_model_with_nothing_else_to_do_names_the_chat(open_app, tmp_path):
    client = ScriptedClient(ANSWER, TITLE, model=IDLE)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Tell me of cats")
        await user.sees("They purr.", "ready")
        await user.until(lambda: _titles(tmp_path) == ["Why cats[2J purr"], "the chat got no title")
        await user.asks("And dogs?")
        await user.sees("And dogs?", "Is that fine?", "ready")
    assert [len(request) for request in client.requests] == [1, 3, 3]
    assert "Is that fine?" not in [message.content for message in client.requests[2]]


@pytest.mark.slow
@pytest.mark.parametrize("model", [BUSY, READY, replace(IDLE, id="guide")])
async def test_a_busy_model_and_the_guide_are_not_asked(open_app, tmp_path, model):
    client = ScriptedClient(ANSWER, model=model)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        for question in ("Tell me of cats", "And dogs?"):
            await user.asks(question)
            await user.sees(question, "They purr.", "ready")
    assert len(client.requests) == 2
    assert _titles(tmp_path) == ["Tell me of cats"]


@pytest.mark.slow
async def test_where_the_model_fails_the_question_stays_the_title(open_app, tmp_path):
    client = ScriptedClient(ANSWER, ScriptedReply(ending=EngineError("died")), ANSWER, model=IDLE)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Tell me of cats")
        await user.until(lambda: len(client.requests) == 2, "no title was asked for")
        await user.asks("And dogs?")
        await user.sees("And dogs?", "ready")
        assert "died" not in user.screen_text
    assert _titles(tmp_path) == ["Tell me of cats"]


@pytest.mark.slow
async def test_a_question_comes_before_a_title(open_app, tmp_path):
    slow = ScriptedReply(deltas=("Why",), pause_after=1)
    client = ScriptedClient(ANSWER, slow, ScriptedReply(deltas=("They bark.",)), model=IDLE)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Tell me of cats")
        await user.until(lambda: len(client.requests) == 2, "no title was asked for")
        await user.asks("And dogs?")
        await user.sees("They bark.", "ready")
    assert client.n_aborted == 1
    assert _titles(tmp_path) == ["Tell me of cats"]


def test_a_title_from_the_user_stays(tmp_path):
    with ChatStore(tmp_path) as store:
        named, unnamed = store.chats.create(title="Tell me"), store.chats.create(title="Tell me")
        store.chats.rename(named.id, "Mine")
        for chat in (named, unnamed):
            store.chats.set_title(chat.id, "Cats", former="Tell me")
        assert [store.chats.get(chat.id).title for chat in (named, unnamed)] == ["Mine", "Cats"]
