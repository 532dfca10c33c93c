"""An answer that repeats itself: the chat says it once, goes on, and Esc stops it."""

from __future__ import annotations

from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

SENTENCE = "The capital of France is Paris, which is known for its museums. "


async def test_an_answer_that_repeats_itself_is_told_once_and_stopped_by_the_person(open_app):
    reply = ScriptedReply(deltas=("Here it is. ", *[SENTENCE] * 30), pause_after=30)
    client = ScriptedClient(reply)
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("Where is Paris?")
        await user.sees("The answer repeats itself: Esc stops it.")
        assert client.n_aborted == 0
        await user.presses("escape")
        await user.sees("stopped")
        await user.no_longer_sees("The answer repeats itself")  # there is nothing left to stop
    assert client.n_aborted == 1
