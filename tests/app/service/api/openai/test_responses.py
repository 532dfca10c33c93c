from __future__ import annotations

from typing import Any

import pytest

from app.common.answer_text import ReasoningTags
from app.engine.messages import Finished, Output
from app.engine.request import FinishReason, Request, Timings, Usage
from app.service.api.openai.responses import ChatFormatter
from app.service.generation.generation import Answer, answer_parser

TAGS = ReasoningTags("<think>", "</think>")
FORMATTER = ChatFormatter(Request(request_id="id", prompt="p").variants(2), "model", n_each=2)


def _finished(index: int, **usage: int) -> Finished:
    return Finished(f"{index}", FinishReason.STOP, Usage(n_prompt_tokens=9, **usage), Timings(decode_s=1.0 + index))


def _deltas(*texts: str) -> list[Any]:
    answer = Answer(0, answer_parser(TAGS, None))
    deltas = [answer.add(Output("id", text, 1)) for text in texts]
    return [FORMATTER.chunk(delta, counts_tokens=False)["choices"][0]["delta"] for delta in deltas if delta]


def test_thoughts_stream_under_a_name_of_their_own_and_only_where_there_are_some() -> None:
    assert _deltas("<think>hm", "</think>", "Yes", "!") == [
        {"reasoning_content": "hm"},
        {"content": "Yes"},
        {"content": "!"},
    ]


def test_the_end_of_a_thought_and_the_begin_of_the_answer_may_come_together() -> None:
    assert _deltas("<think>hm</think>Yes") == [{"reasoning_content": "hm", "content": "Yes"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<think>hm</think>Yes", {"role": "assistant", "content": "Yes", "reasoning_content": "hm"}),
        ("Yes", {"role": "assistant", "content": "Yes"}),
    ],
)
def test_a_whole_answer_has_its_thought_beside_it(text: str, message: dict[str, str]) -> None:
    answers = [Answer(index, answer_parser(TAGS, None)) for index in range(2)]
    for answer in answers:
        answer.add(Output("id", text, 1))
        answer.add(_finished(answer.index))
    assert [choice["message"] for choice in FORMATTER.whole(answers, {})["choices"]] == [message, message]


def test_usage_of_several_answers_counts_the_prompt_once_as_the_first_computed_it() -> None:
    answers = [Answer(index, answer_parser(TAGS, None)) for index in range(2)]
    answers[0].add(_finished(0, n_cached_tokens=8, n_output_tokens=5))
    answers[1].add(_finished(1, n_cached_tokens=2, n_output_tokens=7))
    whole = FORMATTER.whole(answers, {})
    assert whole["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert whole["timings"]["predicted_ms"] == 2000.0
