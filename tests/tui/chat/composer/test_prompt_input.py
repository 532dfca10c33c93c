"""Typing."""

from __future__ import annotations

import pytest
from textual.events import Key

from tests.app.client.scripted_client import ScriptedClient


@pytest.mark.slow
async def test_ctrl_j_starts_a_new_line_and_enter_sends_both(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("one\ntwo")
        await user.presses("shift+enter")
        await user.asks("three")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "one\ntwo\nthree"


async def test_enter_does_not_overtake_letters_that_come_in_one_burst(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        for character in "hello":
            user.app.post_message(Key(character, character))
        user.app.post_message(Key("enter", "\r"))
        await user.sees("Hello.")
    assert client.requests[0][0].content == "hello"


async def test_blank_text_is_not_sent(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks(" \n ")
        await user.sees("ready")
    assert client.requests == []


@pytest.mark.slow
async def test_up_on_an_empty_line_walks_back_through_what_was_sent_and_down_returns(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        for question in ("alpha", "beta"):
            await user.asks(question)
            await user.sees("ready")
        prompt = user.app.screen.query_one("PromptInput")
        seen = []
        for key in ("up", "up", "up", "down", "down"):
            await user.presses(key)
            seen.append(prompt.text)
        assert seen == ["beta", "alpha", "alpha", "beta", ""]


@pytest.mark.slow
async def test_up_in_a_draft_moves_the_cursor_and_keeps_the_draft(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("sent")
        await user.sees("Hello.")
        await user.types("first\nsecond")
        await user.presses("up", "up", "x")
        assert "x" in user.app.screen.query_one("PromptInput").text.splitlines()[0]


async def test_keys_that_move_and_delete_keep_their_place_among_letters_in_one_burst(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        for key in ("a", "x", "backspace", "b", "left", "left", "c", "end", "d", "ctrl+a", "e"):
            user.app.post_message(Key(key, key if len(key) == 1 else None))
        prompt = user.app.screen.query_one("PromptInput")
        await user.until(lambda: prompt.text == "ecabd", "the keys came in another order")
