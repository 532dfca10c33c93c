"""The stream of an answer, and the figures measured while it runs."""

from __future__ import annotations

import itertools
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat import stream
from app.chat.conversation import Message
from app.chat.state import AnswerTimer, format_reasoning
from app.chat.stream import StreamChunk, remaining_pause_s, stream_answer
from app.common.terminal import printable
from app.connection import ServiceConnection
from app.protocol.chat import Message as ChatMessage
from app.protocol.chat import ToolCall, with_deltas
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply


@pytest.fixture(autouse=True)
def _no_batching(monkeypatch):
    monkeypatch.setattr(stream, "BATCH_S", 0.0)


async def _parts(client):
    async with ServiceConnection(client.opened, "guide") as connection:
        return [part async for part in stream_answer(connection, [ChatMessage("user", "hi")])]


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
        aclosing(stream_answer(connection, [ChatMessage("user", "hi")])) as parts,
    ):
        text = (await anext(parts)).text
        while text != "ab":
            text += (await anext(parts)).text
        with pytest.raises(EngineError, match="died"):
            await anext(parts)


async def test_calls_come_as_the_model_wrote_them():
    calls = (ToolCall("c1", "read", '{"x": "\\u001b[31m"}'), ToolCall("c2", "write", "{}"))
    *chunks, completed = await _parts(ScriptedClient(ScriptedReply(deltas=("So.",), calls=calls)))
    found = ()
    for chunk in chunks:
        found = with_deltas(found, chunk.calls)
    assert found == calls
    assert "".join(chunk.text for chunk in chunks) == "So."
    assert (chunks[-1].n_tokens, completed.finish_reason) == (5, "tool_calls")


async def test_closing_the_generator_aborts_the_stream():
    client = ScriptedClient(ScriptedReply(deltas=("a", "b"), pause_after=1))
    async with ServiceConnection(client.opened, "guide") as connection:
        async with aclosing(stream_answer(connection, [ChatMessage("user", "hi")])) as parts:
            assert (await anext(parts)).text == "a"
        assert client.n_aborted == 1


@pytest.mark.parametrize(
    ("drawing_s", "pause_s"),
    [(0.0, 0.0), (0.01, 0.0), (0.02, 0.05), (0.025, 0.075), (5.0, 0.1)],
)
def test_an_answer_that_is_slow_to_draw_comes_in_larger_chunks_up_to_a_limit(monkeypatch, drawing_s, pause_s):
    monkeypatch.setattr(stream, "BATCH_S", 0.05)
    assert remaining_pause_s(drawing_s) == pytest.approx(pause_s)


async def test_the_next_chunk_waits_for_as_long_as_the_work_on_the_last_one_asks(monkeypatch):
    pauses_s = []
    monkeypatch.setattr(stream, "remaining_pause_s", lambda drawing_s: pauses_s.append(drawing_s) or 0.0)
    work_s = itertools.count(step=3.0)
    client = ScriptedClient(ScriptedReply(deltas=("a", "b"), pause_after=1))
    async with ServiceConnection(client.opened, "guide") as connection:
        turns = [ChatMessage("user", "hi")]
        async with aclosing(stream_answer(connection, turns, busy_s=lambda: next(work_s))) as parts:
            assert (await anext(parts)).text == "a"
            client.resume()
            assert (await anext(parts)).text == "b"
    assert pauses_s == [3.0]


def test_thoughts_are_timed_from_the_first_to_the_last_and_the_answer_is_not():
    times_s = iter([9.0, 10.0, 13.2, 15.0])
    timer = AnswerTimer(lambda: next(times_s))
    for n_tokens, n_thought_tokens in ((5, 5), (12, 10), (13, None)):
        timer.observe(n_tokens, n_thought_tokens)
    assert timer.stats == {"thought_s": pytest.approx(3.2), "n_thought_tokens": 10}


def test_a_continued_answer_keeps_the_figures_of_its_thoughts():
    former = {"thought_s": 1.5, "n_thought_tokens": 7, "finish_reason": "length"}
    timer = AnswerTimer(lambda: 0.0, former)
    timer.observe(1)
    assert timer.stats == {"thought_s": 1.5, "n_thought_tokens": 7}


@pytest.mark.parametrize(
    ("content", "stats", "is_running", "words"),
    [
        ("Yes.", {"thought_s": 3.21, "n_thought_tokens": 410}, False, "thought for 3.2 s, 410 tokens"),
        ("", {"thought_s": 0.5, "n_thought_tokens": 1}, True, "thinking for 0.5 s, 1 token"),
        ("Yes", {"thought_s": 0.5, "n_thought_tokens": 2}, True, "thought for 0.5 s, 2 tokens"),
        ("Imported.", {}, False, "thought"),
    ],
)
def test_the_line_contains_the_known_figures(content, stats, is_running, words):
    message = Message(id=1, parent_id=None, role="assistant", content=content, reasoning="hm", stats=stats)
    assert format_reasoning(message, is_running=is_running) == words
