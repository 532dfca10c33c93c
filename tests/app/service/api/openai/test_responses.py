from __future__ import annotations

from typing import Any

import pytest

from app.common.answer_text import ReasoningTags
from app.engine.messages import Finished, Output
from app.engine.request import FinishReason, Request, Timings, TokenLogprob, Usage
from app.service.api.openai.responses import ChatFormatter
from app.service.api.openai.usage import text_logprobs
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


@pytest.mark.parametrize("n_top", [0, 1, 2, 3])
def test_alternatives_have_the_chosen_token_and_tell_parts_of_characters_apart(n_top: int) -> None:
    """Parts of 東 and of 京 both read as U+FFFD; OpenAI writes them by their bytes."""
    top = ((1, b"\xe6\x9d", -0.5), (2, b"\xe4\xba", -1.0), (3, b" a", -2.0))[:n_top]
    (alternatives,) = text_logprobs([TokenLogprob(b"\xe6\xb1", -3.0, top, 0, 4)])["top_logprobs"]
    expected = {"bytes:\\xe6\\x9d": -0.5, "bytes:\\xe4\\xba": -1.0, " a": -2.0}
    assert alternatives == dict(list(expected.items())[:n_top]) | {"bytes:\\xe6\\xb1": -3.0}
    (chosen_is_likely,) = text_logprobs([TokenLogprob(b"\xe6\x9d", -0.5, top, 0, 1)])["top_logprobs"]
    assert chosen_is_likely is not None
    assert len(chosen_is_likely) == max(1, n_top)
