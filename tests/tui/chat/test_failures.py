"""What failed is still known when the chat is opened again, and what is true no longer goes away."""

from __future__ import annotations

import pytest

from app.chat.branches import failure_stats, stored_failure
from app.chat.conversation import Message, MessageState
from app.chat.repository import SqliteChatRepository
from app.protocol.errors import ContextOverflowError, RequestError, ServiceError
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

REFUSED = RequestError("The engine at http://far responds 429: too many requests", "Try again later.")


@pytest.mark.slow
@pytest.mark.parametrize("deltas", [(), ("Half ",)], ids=["no text", "half an answer"])
async def test_a_failure_is_shown_again_after_reopening_and_a_stop_is_a_stop(open_app, tmp_path, deltas):
    replies = ScriptedReply(deltas=deltas, ending=REFUSED), ScriptedReply(deltas=("a", "b"), pause_after=1)
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(*replies), repository=repository) as user,
    ):
        await user.asks("Cats?")
        await user.sees("responds 429: too many requests", "Try again later.", "incomplete")
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("responds 429: too many requests", "Try again later.", "incomplete")
        assert "stopped" not in user.screen_text
        await user.presses("ctrl+r")
        await user.sees("Hello.", "ready")


@pytest.mark.parametrize(
    "error", [REFUSED, EngineError("It died.", "Again."), ContextOverflowError(75_253, 8192), ServiceError("Gone.", "")]
)
def test_an_error_is_kept_with_its_kind(error):
    partial = Message(
        id=1, parent_id=None, role="assistant", content="", state=MessageState.PARTIAL, stats=failure_stats(error)
    )
    found = stored_failure(partial)
    assert (type(found), str(found)) == (type(error), str(error))


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"kind": 1}', '{"kind": "ContextOverflowError"}', 7])
def test_what_an_imported_chat_says_of_a_failure_is_no_failure(text):
    stats = {"failure": text}
    partial = Message(id=1, parent_id=None, role="assistant", content="", state=MessageState.PARTIAL, stats=stats)
    assert stored_failure(partial) is None


@pytest.mark.slow
async def test_a_lost_service_is_news_until_it_is_there_again(open_app):
    gone = ServiceError("No localllm service answers at http://127.0.0.1:1.", "Start it with `localllm serve`.")
    client = ScriptedClient(ScriptedReply(deltas=("Half ",), ending=gone), ScriptedReply(deltas=("Whole.",)))
    async with open_app(client) as user:
        await user.asks("Cats?")
        await user.sees(
            "No localllm service answers", "opened again by itself", "Ctrl+R asks again.", "Connected again."
        )
        await user.no_longer_sees("Lost the service")
        assert "localllm serve" not in user.screen_text
        await user.presses("ctrl+r")
        await user.sees("Whole.", "ready")


@pytest.mark.slow
async def test_a_draft_that_cannot_fit_is_not_sent_and_the_ways_out_are_named(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.pastes("word " * 300 + "end")
        await user.pastes(" word" * 2000)
        await user.types("sum it")
        await user.sees("too long")
        await user.presses("enter")
        await user.sees("Too long: about", "Alt+N")
        assert "sum it" in user.screen_text
        assert client.requests == []
