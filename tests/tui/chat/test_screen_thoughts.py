"""What a model thinks before it answers: one line, opened by a key or a click, kept, and never told to the model."""

from __future__ import annotations

from app.chat.store import ChatStore
from app.client.fake import ScriptedClient, ScriptedReply
from tui.chat.repository import SqliteChatRepository

THOUGHTFUL = ScriptedReply(thoughts=("Hm, ", "cats?\x1b[2J "), deltas=("Yes", ", cats."))


async def test_thoughts_are_one_line_that_a_key_opens_and_folds(sitting):
    async with sitting(ScriptedClient(THOUGHTFUL)) as person:
        await person.asks("Cats?")
        await person.sees("▸ thought for 0.0 s, 2 tokens", "Yes, cats.", "ready")
        assert "Hm" not in person.screen_text
        await person.presses("ctrl+up", "t")
        await person.sees("▾ thought for", "Hm, cats?[2J", "Yes, cats.")
        await person.presses("t")
        await person.no_longer_sees("Hm, cats?")


async def test_a_click_opens_the_thoughts(sitting):
    async with sitting(ScriptedClient(THOUGHTFUL)) as person:
        await person.asks("Cats?")
        await person.sees("▸ thought for 0.0 s, 2 tokens", "ready")
        rows = person.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "▸" in line)
        await person.pilot.click(offset=(rows[row].index("▸"), row))
        await person.sees("Hm, cats?")


async def test_thoughts_that_are_open_grow_while_the_model_thinks(sitting):
    client = ScriptedClient(ScriptedReply(thoughts=("One. ", "Two."), deltas=("Done.",), pause_after=1))
    async with sitting(client) as person:
        await person.asks("Cats?")
        await person.sees("▸ thinking for 0.0 s, 1 token")
        await person.asks("/thoughts")
        await person.sees("One.")
        client.resume()
        await person.sees("One. Two.", "Done.", "▾ thought for 0.0 s, 2 tokens", "ready")


async def test_thoughts_are_kept_and_never_sent_back(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(THOUGHTFUL), keeper=keeper) as person:
        await person.asks("Cats?")
        await person.sees("Yes, cats.", "ready")
    with ChatStore(tmp_path) as store:
        answer = store.transcripts.read(store.chats.latest().id).branch[-1]
    assert (answer.reasoning, answer.content) == ("Hm, cats?[2J ", "Yes, cats.")
    assert answer.stats["n_thought_tokens"] == 2
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("▸ thought for 0.0 s, 2 tokens", "Yes, cats.")
        await person.asks("And dogs?")
        await person.sees("Hello.", "ready")
    assert [message.content for message in client.requests[0]] == ["Cats?", "Yes, cats.", "And dogs?"]


async def test_an_answer_stopped_in_its_thoughts_keeps_them_and_what_they_took(sitting, tmp_path):
    client = ScriptedClient(ScriptedReply(thoughts=("One. ", "Two."), pause_after=2))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("Cats?")
        await person.sees("thinking for 0.0 s, 2 tokens")
        await person.presses("escape")
        await person.sees("▸ thought for 0.0 s, 2 tokens", "stopped")
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("▸ thought for 0.0 s, 2 tokens", "stopped")
        await person.asks("/thoughts")
        await person.sees("One. Two.")


async def test_where_nothing_was_thought_it_is_said(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.asks("Cats?")
        await person.sees("Hello.", "ready")
        await person.asks("/thoughts")
        await person.sees("There are no thoughts")
