"""Questions that wait for an answer, and answers that run on while another chat is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.conversation import MessageState
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tui.chat.commands import EXAMPLES

SLOW = ScriptedReply(deltas=("Half ", "whole."), pause_after=1)
SECOND = ScriptedReply(deltas=("The second answer.",))


def _prompt(user) -> str:
    return user.app.screen.query_one("PromptInput").text


def _contents(data_dir: Path, title: str) -> list[str]:
    with ChatStore(data_dir) as store:
        chat = next(chat for chat in store.chats.page() if chat.title == title)
        return [message.content for message in store.transcripts.read(chat.id).branch]


@pytest.mark.slow
async def test_a_question_sent_during_an_answer_waits_and_is_sent_when_that_ends(open_app):
    client = ScriptedClient(SLOW, SECOND)
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Half", "answering")
        await user.asks("second")
        await user.sees("waiting: second", "Up in the empty prompt")
        assert len(client.requests) == 1
        client.resume()
        await user.sees("whole.", "The second answer.", "ready")
        await user.no_longer_sees("waiting:")
    assert [message.content for message in client.requests[1]] == ["first", "Half whole.", "second"]


@pytest.mark.slow
async def test_up_takes_a_waiting_question_back_to_be_edited(open_app):
    client = ScriptedClient(SLOW, SECOND)
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("one")
        await user.asks("two")
        await user.sees("waiting: one", "waiting: two")
        await user.presses("up")
        await user.no_longer_sees("waiting: two")
        assert _prompt(user) == "two"
        await user.types("!")
        await user.presses("enter")
        await user.sees("waiting: two!")
        client.resume()
        await user.sees("two!", "ready")
    assert [request[-1].content for request in client.requests] == ["first", "one", "two!"]


@pytest.mark.slow
async def test_stopping_an_answer_puts_the_waiting_questions_back_into_the_prompt(open_app):
    client = ScriptedClient(SLOW)
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("one")
        await user.asks("two")
        await user.sees("waiting: two")
        await user.types("three")
        await user.presses("escape")
        await user.sees("stopped", "ready")
        await user.no_longer_sees("waiting:")
        assert _prompt(user) == "one\n\ntwo\n\nthree"
    assert len(client.requests) == 1


@pytest.mark.slow
async def test_waiting_questions_are_not_sent_after_a_failure(open_app):
    died = ScriptedReply(deltas=("Half ",), ending=EngineError("It died."), pause_after=1)
    client = ScriptedClient(died, SECOND)
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("second")
        await user.sees("waiting: second")
        client.resume()
        await user.sees("It died.")
        await user.no_longer_sees("waiting:")
        assert _prompt(user) == "second"
    assert len(client.requests) == 1


@pytest.mark.slow
async def test_waiting_questions_survive_a_kill_as_unsent_text(open_app, tmp_path):
    client = ScriptedClient(SLOW)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("second")
        await user.types("third")

        def draft() -> str:
            with ChatStore(tmp_path) as store:
                return store.drafts.get(1).content

        await user.until(lambda: draft() == "second\n\nthird", "the waiting question was not saved")


async def test_an_answer_goes_on_in_a_new_chat_and_is_saved(open_app, tmp_path):
    client = ScriptedClient(SLOW, SECOND)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.presses("ctrl+n")
        await user.sees(EXAMPLES[0])
        await user.no_longer_sees("Half")
        assert "answering" not in user.screen_text
        client.resume()
        await user.sees("“first” has its answer")
        assert "whole." not in user.screen_text
        assert _contents(tmp_path, "first") == ["first", "Half whole."]
    assert client.n_aborted == 0


@pytest.mark.slow
async def test_a_chat_shows_its_answer_grow_when_it_is_opened_again(open_app, tmp_path):
    client = ScriptedClient(SLOW, SECOND)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.presses("ctrl+n")
        await user.asks("other")
        await user.sees("The second answer.", "ready")
        await user.app.open_chat(1)
        await user.sees("first", "Half", "answering")
        assert "The second answer." not in user.screen_text
        client.resume()
        await user.sees("Half whole.", "ready", "48 tokens a second")
    assert _contents(tmp_path, "other") == ["other", "The second answer."]


@pytest.mark.slow
async def test_the_list_of_chats_shows_which_are_being_answered(open_app, tmp_path):
    client = ScriptedClient(SLOW)
    async with SqliteChatRepository(tmp_path / "data") as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.presses("ctrl+n", "f5")
        await user.sees("first", "● answering")
        client.resume()
        await user.no_longer_sees("● answering")
        await user.sees("first")


@pytest.mark.slow
async def test_a_question_that_waits_in_a_hidden_chat_is_sent_there(open_app, tmp_path):
    client = ScriptedClient(SLOW, SECOND)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("second")
        await user.sees("waiting: second")
        await user.types("unsent")
        await user.presses("ctrl+n")
        await user.no_longer_sees("waiting: second")
        assert _prompt(user) == ""
        client.resume()
        await user.sees("“first” has its answer")
        await user.app.open_chat(1)
        await user.sees("The second answer.")
        await user.until(lambda: _prompt(user) == "unsent", "the text in the prompt was lost")
    assert _contents(tmp_path, "first") == ["first", "Half whole.", "second", "The second answer."]


@pytest.mark.slow
async def test_coming_back_before_a_waiting_question_is_sent_shows_it_and_the_unsent_text(open_app, tmp_path):
    client = ScriptedClient(SLOW, SECOND)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.asks("second")
        await user.types("unsent")
        await user.presses("ctrl+n")
        await user.no_longer_sees("waiting: second")
        await user.app.open_chat(1)
        await user.sees("waiting: second", "answering")
        await user.until(lambda: _prompt(user) == "unsent", "the text in the prompt was lost")


@pytest.mark.slow
async def test_quitting_keeps_the_text_of_every_running_answer(open_app, tmp_path):
    client = ScriptedClient(SLOW)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("first")
        await user.sees("Half")
        await user.presses("ctrl+n")
        await user.asks("other")
        await user.sees("other", "Half")
        await user.presses("ctrl+q")
        await user.leaves()
    assert client.n_aborted == 2
    with ChatStore(tmp_path) as store:
        answers = [store.messages.of(chat.id)[1] for chat in store.chats.page()]
    assert [(answer.content, answer.state) for answer in answers] == [("Half ", MessageState.PARTIAL)] * 2
