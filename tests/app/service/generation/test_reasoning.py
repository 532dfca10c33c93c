from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.service.generation.reasoning import ReasoningParser, ReasoningTags, TextParts, reasoning_tags_of

TAGS = ReasoningTags("<think>", "</think>")
OPENED = ReasoningTags("<think>", "</think>", is_open=True)


def split(text: str, cuts: list[int], thinking: ReasoningTags = TAGS) -> tuple[list[TextParts], TextParts]:
    """Return what is shown piece by piece, and all of it."""
    splitter = ReasoningParser(thinking)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    shown = [splitter.push(text[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    shown.append(splitter.finish())
    return shown, TextParts("".join(part.thought for part in shown), "".join(part.answer for part in shown))


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nhm, so\n</think>\n\nYes.", "hm, so", "Yes."),
        ("\n<think>a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>never closed ", "never closed", ""),
        ("<think>one</think>two <think>three</think>", "one", "two <think>three</think>"),
        ("Write <think> before it.", "", "Write <think> before it."),
        ("  plain", "", "  plain"),
        ("<thi", "", "<thi"),
        ("<think>a < b </thin", "a < b </thin", ""),
        ("", "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 50), max_size=6))
def test_however_it_is_cut_a_thought_and_an_answer_come_out_whole(
    text: str, thought: str, answer: str, cuts: list[int]
) -> None:
    shown, whole = split(text, cuts)
    assert whole == TextParts(thought, answer)
    if "</think>" in text:
        assert not any("</" in part.thought for part in shown), "no part of a tag is shown"


def test_a_thought_that_the_prompt_opened_needs_no_opening_tag() -> None:
    assert split("\nhm</think>\nYes.", [3, 6], OPENED)[1] == TextParts("hm", "Yes.")


@given(st.text("<think>/ab\n", max_size=40), st.lists(st.integers(0, 40), max_size=8), st.sampled_from([TAGS, OPENED]))
def test_the_pieces_do_not_depend_on_where_the_text_is_cut(text: str, cuts: list[int], thinking: ReasoningTags) -> None:
    assert split(text, cuts, thinking)[1] == split(text, [], thinking)[1]


@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_model_that_does_not_think_aloud_is_passed_on_at_once(text: str, cuts: list[int]) -> None:
    shown, whole = split(text, cuts, ReasoningTags())
    assert whole == TextParts("", text)
    assert shown[-1] == TextParts()


@pytest.mark.parametrize(
    ("template", "prompt", "thinking"),
    [
        ("{{ messages }}", "x", ReasoningTags()),
        ("… <think></think> …", "<user>hi\n<assistant>", TAGS),
        ("… </think> …", "<user>hi\n<assistant><think>\n", OPENED),
        ("… </think> …", "<assistant><think>\n\n</think>\n\n", TAGS),
        ("[THINK] …", "x", ReasoningTags("[THINK]", "[/THINK]")),
    ],
)
def test_the_chat_template_tells_the_tags_and_the_prompt_whether_one_is_open(
    template: str, prompt: str, thinking: ReasoningTags
) -> None:
    assert reasoning_tags_of(template, prompt) == thinking
