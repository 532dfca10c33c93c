"""The text of an answer on its way to the screen."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.client.fake import COMPLETED, ScriptedClient, ScriptedReply
from app.protocol.chat import Message
from app.terminal import printable
from quantizer.errors import EngineError
from tui.chat import answer_stream as stream
from tui.chat.answer_stream import StreamChunk, stream_answer
from tui.connection.connection import ServiceConnection


@pytest.fixture(autouse=True)
def _no_batching(monkeypatch):
    monkeypatch.setattr(stream, "BATCH_S", 0.0)


async def _parts(client):
    async with ServiceConnection(client.opened, "guide") as connection:
        return [part async for part in stream_answer(connection, [Message("user", "hi")])]


@settings(max_examples=30)
@given(st.lists(st.text(max_size=8), max_size=12))
async def test_chunks_add_up_to_the_cleaned_text_and_the_cost_comes_last(deltas):
    parts = await _parts(ScriptedClient(ScriptedReply(deltas=tuple(deltas))))
    chunks = [part for part in parts if isinstance(part, StreamChunk)]
    assert "".join(chunk.text for chunk in chunks) == printable("".join(deltas))
    assert [chunk.n_tokens for chunk in chunks][-1:] == [len(deltas)][: len(chunks)]
    assert parts[-1] == COMPLETED
    assert len(parts) == len(chunks) + 1


async def test_text_before_an_error_is_yielded_before_it_is_raised():
    client = ScriptedClient(ScriptedReply(deltas=("a", "b"), ending=EngineError("died")))
    async with (
        ServiceConnection(client.opened, "guide") as connection,
        aclosing(stream_answer(connection, [Message("user", "hi")])) as parts,
    ):
        text = (await anext(parts)).text
        while text != "ab":
            text += (await anext(parts)).text
        with pytest.raises(EngineError, match="died"):
            await anext(parts)


async def test_closing_the_generator_aborts_the_stream():
    client = ScriptedClient(ScriptedReply(deltas=("a", "b"), pause_after=1))
    async with ServiceConnection(client.opened, "guide") as connection:
        async with aclosing(stream_answer(connection, [Message("user", "hi")])) as parts:
            assert (await anext(parts)).text == "a"
        assert client.n_aborted == 1
