"""Typing."""

from __future__ import annotations

from textual.events import Key

from app.client.fake import ScriptedClient


async def test_ctrl_j_starts_a_new_line_and_enter_sends_both(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.types("one\ntwo")
        await person.presses("shift+enter")
        await person.asks("three")
        await person.sees("Hello.")
    assert client.requests[0][0].content == "one\ntwo\nthree"


async def test_enter_does_not_overtake_letters_that_come_in_one_burst(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees("ready")
        for character in "hello":
            person.app.post_message(Key(character, character))
        person.app.post_message(Key("enter", "\r"))
        await person.sees("Hello.")
    assert client.requests[0][0].content == "hello"


async def test_blank_text_is_not_sent(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.asks(" \n ")
        await person.sees("ready")
    assert client.requests == []


async def test_up_on_an_empty_line_walks_back_through_what_was_sent_and_down_returns(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        for question in ("alpha", "beta"):
            await person.asks(question)
            await person.sees("ready")
        prompt = person.app.screen.query_one("PromptInput")
        seen = []
        for key in ("up", "up", "up", "down", "down"):
            await person.presses(key)
            seen.append(prompt.text)
        assert seen == ["beta", "alpha", "alpha", "beta", ""]


async def test_up_in_a_draft_moves_the_cursor_and_keeps_the_draft(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.asks("sent")
        await person.sees("Hello.")
        await person.types("first\nsecond")
        await person.presses("up", "up", "x")
        assert "x" in person.app.screen.query_one("PromptInput").text.splitlines()[0]


async def test_keys_that_move_and_delete_keep_their_place_among_letters_in_one_burst(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.sees("ready")
        for key in ("a", "x", "backspace", "b", "left", "left", "c", "end", "d", "ctrl+a", "e"):
            person.app.post_message(Key(key, key if len(key) == 1 else None))
        prompt = person.app.screen.query_one("PromptInput")
        await person.until(lambda: prompt.text == "ecabd", "the keys came in another order")
