"""Reasoning: one line, expanded by a key or a click, saved, and never sent to the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import GenerationOptions
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply

pytestmark = pytest.mark.slow

THOUGHTFUL = ScriptedReply(thoughts=("Hm, ", "cats?\x1b[2J "), deltas=("Yes", ", cats."))


async def test_thoughts_are_one_line_that_a_key_opens_and_folds(open_app):
    async with open_app(ScriptedClient(THOUGHTFUL)) as user:
        await user.asks("Cats?")
        await user.sees("▸ thought for 0.0 s, 2 tokens", "Yes, cats.", "ready")
        assert "Hm" not in user.screen_text
        await user.presses("ctrl+up", "t")
        await user.sees("▾ thought for", "Hm, cats?[2J", "Yes, cats.")
        await user.presses("t")
        await user.no_longer_sees("Hm, cats?")


async def test_a_click_opens_the_thoughts(open_app):
    async with open_app(ScriptedClient(THOUGHTFUL)) as user:
        await user.asks("Cats?")
        await user.sees("▸ thought for 0.0 s, 2 tokens", "ready")
        rows = user.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "▸" in line)
        await user.pilot.click(offset=(rows[row].index("▸"), row))
        await user.sees("Hm, cats?")


async def test_thoughts_that_are_open_grow_while_the_model_thinks(open_app):
    client = ScriptedClient(ScriptedReply(thoughts=("One. ", "Two."), deltas=("Done.",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("Cats?")
        await user.sees("▸ thinking for 0.0 s, 1 token")
        await user.asks("/thoughts")
        await user.sees("One.")
        client.resume()
        await user.sees("One. Two.", "Done.", "▾ thought for 0.0 s, 2 tokens", "ready")


async def test_thoughts_are_saved_and_never_sent_back(open_app, tmp_path):
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(THOUGHTFUL), repository=repository) as user,
    ):
        await user.asks("Cats?")
        await user.sees("Yes, cats.", "ready")
    with ChatStore(tmp_path) as store:
        answer = store.transcripts.read(store.chats.latest().id).branch[-1]
    assert (answer.reasoning, answer.content) == ("Hm, cats?[2J ", "Yes, cats.")
    assert answer.stats["n_thought_tokens"] == 2
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("▸ thought for 0.0 s, 2 tokens", "Yes, cats.")
        await user.asks("And dogs?")
        await user.sees("Hello.", "ready")
    assert [message.content for message in client.requests[0]] == ["Cats?", "Yes, cats.", "And dogs?"]


async def test_an_answer_stopped_while_thinking_keeps_its_thoughts_and_their_figures(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(thoughts=("One. ", "Two."), pause_after=2))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Cats?")
        await user.sees("thinking for 0.0 s, 2 tokens")
        await user.presses("escape")
        await user.sees("▸ thought for 0.0 s, 2 tokens", "stopped")
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("▸ thought for 0.0 s, 2 tokens", "stopped")
        await user.asks("/thoughts")
        await user.sees("One. Two.")


async def test_an_answer_without_thoughts_is_reported(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("Cats?")
        await user.sees("Hello.", "ready")
        await user.asks("/thoughts")
        await user.sees("There are no thoughts")


ENDED = replace(COMPLETED, n_cut_reasoning_tokens=37)


async def test_a_key_ends_a_running_thought_and_the_answer_begins(open_app, tmp_path):
    reply = ScriptedReply(thoughts=("One. ", "Enough."), deltas=("Done.",), ending=ENDED, pause_after=1)
    client = ScriptedClient(reply)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("Cats?")
        await user.sees("▸ thinking for 0.0 s, 1 token", "ctrl+b answer now · esc stop")
        await user.presses("ctrl+b")
        await user.sees("▸ thought ended after 37 tokens", "Done.", "ready")
        assert client.ended_thoughts == ["answer-1"]
        await user.no_longer_sees("answer now")
        await user.presses("alt+b")
        await user.sees("No thought is running.")
        assert client.ended_thoughts == ["answer-1"]
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("▸ thought ended after 37 tokens", "Done.")


async def test_a_word_ends_a_running_thought_too(open_app):
    client = ScriptedClient(ScriptedReply(thoughts=("One. ",), deltas=("Done.",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("Cats?")
        await user.sees("answer now")
        await user.asks("/answer")
        await user.sees("Done.", "ready")
        assert client.ended_thoughts == ["answer-1"]


async def test_how_much_to_think_is_kept_with_the_chat_and_shown(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("/think low")
        await user.sees("Thinking: low.", "think low")
        await user.asks("Cats?")
        await user.sees("Hello.", "ready")
        await user.asks("/think 500")
        await user.sees("at most 500 tokens", "think 500")
        await user.asks("And dogs?")
        await user.sees("And dogs?", "ready")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("Hello.", "think 500")
        await user.asks("/think auto")
        await user.sees("Thinking: auto")
        await user.no_longer_sees("think 500")
        await user.asks("/think hard")
        await user.sees("think is hard.")
    assert [options.think for options in client.options] == ["low", "500"]
    assert client.options[0] == GenerationOptions(think="low")
