"""Duration and length of an answer's reasoning."""

from __future__ import annotations

import pytest

from app.chat.conversation import Message
from tui.chat.answer_stream import AnswerTimer, StreamChunk, format_reasoning


def test_thoughts_are_timed_from_the_first_to_the_last_and_the_answer_is_not():
    times_s = iter([9.0, 10.0, 13.2, 15.0])
    timer = AnswerTimer(lambda: next(times_s))
    for chunk in (StreamChunk("", 5, "hm", 5), StreamChunk("Yes", 12, " so", 10), StreamChunk(".", 13)):
        timer.observe(chunk)
    assert timer.stats == {"thought_s": pytest.approx(3.2), "n_thought_tokens": 10}


def test_a_continued_answer_keeps_the_figures_of_its_thoughts():
    former = {"thought_s": 1.5, "n_thought_tokens": 7, "finish_reason": "length"}
    timer = AnswerTimer(lambda: 0.0, former)
    timer.observe(StreamChunk("on", 1))
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
