from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.thought import Thought
from app.engine.request import ReasoningBudget
from app.protocol.errors import RequestError

BUDGET = ReasoningBudget(
    opening="<think>", closings=("</think>",), ending="\n</think>", conclusion="\n\nEnough.", max_tokens=40
)


def tokenize(text: str) -> list[int]:
    return list(text.encode())


def thought(**changes: object) -> Thought:
    return Thought(replace(BUDGET, **changes), tokenize)


def observed(followed: Thought, text: str | bytes) -> str:
    """Let `followed` observe the bytes of `text`, a token each, until it forces tokens; return what it observed."""
    data = text.encode() if isinstance(text, str) else text
    for index in range(len(data)):
        followed.observe(data[index : index + 1])
        if followed.forced:
            return data[: index + 1].decode()
    return data.decode()


def forced(followed: Thought) -> str:
    return bytes(followed.forced).decode()


def test_a_thought_within_its_budget_is_left_alone() -> None:
    followed = thought()
    assert observed(followed, "<think>short.</think>" + "Then a long answer. " * 9)
    assert not followed.forced
    assert not followed.was_cut
    assert not followed.is_running


def test_a_thought_is_ended_by_the_conclusion_and_the_tag_once_its_tokens_are_used_up() -> None:
    followed = thought()
    seen = observed(followed, "<think>" + "x" * 99)
    assert seen == "<think>" + "x" * 40
    assert forced(followed) == "\n\nEnough.\n</think>"
    assert (followed.n_tokens, followed.was_cut, followed.is_running) == (40, True, False)


def test_a_thought_ends_early_at_the_end_of_a_sentence_in_the_last_eighth() -> None:
    followed = thought()
    seen = observed(followed, "<think>" + "One. " * 2 + "x" * 27 + ". More and more.")
    assert seen == "<think>One. One. " + "x" * 27 + "."
    assert followed.n_tokens == 38


def test_a_thought_does_not_end_within_a_number() -> None:
    followed = thought()
    assert observed(followed, "<think>" + "x" * 36 + "3.1415") == "<think>" + "x" * 36 + "3.14"


def test_a_thought_without_tokens_ends_at_once_and_without_a_conclusion() -> None:
    followed = thought(max_tokens=0)
    assert observed(followed, "<think>x") == "<think>"
    assert forced(followed) == "\n</think>"


def test_a_thought_that_the_prompt_opened_and_without_tokens_ends_before_its_first() -> None:
    assert forced(thought(max_tokens=0, is_open=True)) == "\n</think>"


def test_no_character_is_cut() -> None:
    followed = thought(max_tokens=2, is_open=True)
    assert observed(followed, "a😀b") == "a😀"
    assert followed.n_tokens == 5


def test_bytes_that_are_no_character_do_not_keep_a_thought_going() -> None:
    followed = thought(max_tokens=2, is_open=True)
    for _ in range(20):
        followed.observe(b"\xf0")
    assert followed.forced


def test_a_closing_tag_that_has_begun_may_finish() -> None:
    followed = thought(max_tokens=4, is_open=True)
    observed(followed, "ab</think>Answer")
    assert not followed.forced
    assert not followed.was_cut


def test_what_only_looks_like_a_closing_tag_does_not_keep_a_thought_going() -> None:
    followed = thought(max_tokens=4, is_open=True)
    assert len(observed(followed, "<" * 99)) <= 4 + len("</think>")


def test_a_thought_ends_when_asked() -> None:
    followed = thought(max_tokens=None)
    observed(followed, "<think>Some words")
    assert not followed.forced
    followed.end()
    assert forced(followed) == "\n\nEnough.\n</think>"
    assert followed.n_tokens == len("Some words")


def test_a_thought_that_is_ended_within_a_character_finishes_that() -> None:
    followed = thought(max_tokens=None, is_open=True)
    followed.observe("é".encode()[:1])
    followed.end()
    assert not followed.forced
    followed.observe("é".encode()[1:])
    assert followed.forced


def test_a_thought_that_is_ended_before_it_began_has_no_text() -> None:
    followed = thought(max_tokens=None)
    followed.end()
    assert observed(followed, "<think>hm") == "<think>"
    assert forced(followed) == "\n</think>"


def test_ending_a_thought_twice_or_too_late_does_nothing() -> None:
    followed = thought(max_tokens=None, is_open=True)
    observed(followed, "hm</think>")
    followed.end()
    assert not followed.forced
    assert not followed.was_cut


def test_tags_in_the_answer_are_text() -> None:
    followed = thought(max_tokens=3)
    observed(followed, "The tag <think> begins a thought, and that has an end.")
    assert not followed.forced
    assert followed.n_tokens == 0


def test_a_thought_that_recurs_has_one_budget_and_ends_otherwise_the_second_time() -> None:
    followed = thought(max_tokens=10, recurs=True, last_ending="</think>!")
    observed(followed, "<think>12345</think>text<think>678901")
    assert forced(followed) == "\n\nEnough.\n</think>"
    followed.forced.clear()
    assert observed(followed, "more<think>again") == "more<think>"
    assert forced(followed) == "</think>!"


def test_a_budget_below_zero_is_refused() -> None:
    with pytest.raises(RequestError, match="budget"):
        thought(max_tokens=-1)


@given(st.text(st.sampled_from("aé😀 .\n"), max_size=120), st.integers(1, 60))
def test_no_thought_is_longer_than_its_budget_and_a_tag(text: str, n_tokens: int) -> None:
    followed = thought(max_tokens=n_tokens, is_open=True)
    seen = observed(followed, text)
    assert text.startswith(seen)
    assert followed.n_tokens <= n_tokens + len("</think>")
