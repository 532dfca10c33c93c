from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.answer_text import ANY_FAMILY, ReasonedText, ReasoningParser, ReasoningTags, reasoning_tags_of

TAGS = ReasoningTags("<think>", "</think>")
OPENED = ReasoningTags("<think>", "</think>", is_open=True)


def split(text: str, cuts: list[int], *tags: ReasoningTags) -> tuple[list[ReasonedText], ReasonedText]:
    """Return what is shown piece by piece, and all of it."""
    splitter = ReasoningParser(*(tags or (TAGS,)))
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    shown = [splitter.push(text[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    shown.append(splitter.finish())
    return shown, ReasonedText("".join(part.text for part in shown), "".join(part.reasoning for part in shown))


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
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
def test_reasoning_and_answer_do_not_depend_on_chunks(text: str, reasoning: str, answer: str, cuts: list[int]) -> None:
    shown, whole = split(text, cuts)
    assert whole == ReasonedText(answer, reasoning)
    if "</think>" in text:
        assert not any("</" in part.reasoning for part in shown), "no part of a tag is shown"


@pytest.mark.parametrize(
    ("opening", "closing"), [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]")]
)
@given(cuts=st.lists(st.integers(0, 50), max_size=6))
def test_the_tags_of_an_unknown_model_are_those_it_begins_with(opening: str, closing: str, cuts: list[int]) -> None:
    text = f"{opening}hm{closing}Yes."
    assert split(text, cuts, *ANY_FAMILY)[1] == ReasonedText("Yes.", "hm")
    assert split(f"No {text}", cuts, *ANY_FAMILY)[1] == ReasonedText(f"No {text}")


SPECIAL = {
    "gemma-4": ("<|channel>thought", "<|channel>thought\nHm.\n<channel|>Yes.<|channel>thought\n<channel|><channel|>"),
    "kimi-k3": (
        "<|open|>",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
        "<|close|>message<|sep|>",
    ),
    "kimi-k3, not closed": ("<|open|>", "<|open|>think<|sep|>Hm.<|open|>response<|sep|>Yes."),
    "command-a": ("<|START_THINKING|>", "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>"),
    "solar-open": ("<|begin|>assistant<|think|>", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.<|end|>"),
    "apertus": ("<|inner_prefix|>", "<|inner_prefix|>Hm.<|inner_suffix|>Yes."),
    "minimax-m3": ("<mm:think>", "<mm:think>Hm.</mm:think>Yes."),
    "apriel": (
        "[BEGIN FINAL RESPONSE]",
        "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.[END FINAL RESPONSE]",
    ),
    "granite-3.3": (
        "<think></think> … between <response></response> tags",
        "<think>Hm.</think>\n<response>Yes.</response>",
    ),
    "granite-3.3, no tags around": ("… between <response></response> tags", "<think>Hm.</think>Yes."),
    "hunyuan-3": ("<think{}>", "<think:opensource>Hm.</think:opensource>Yes."),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_families_with_tokens_of_their_own_are_split_in_chunks_of_every_size(name: str) -> None:
    template, text = SPECIAL[name]
    tags = reasoning_tags_of(template, "")
    for size in range(1, len(text) + 1):
        assert split(text, list(range(size, len(text), size)), tags)[1] == ReasonedText("Yes.", "Hm."), size


def test_reasoning_between_texts_is_a_paragraph_of_its_own_where_it_may_recur() -> None:
    tags = reasoning_tags_of("<|channel>thought", "")
    text = "<|channel>thought\nHm.<channel|>Yes. <|channel>thought\n So.\n<channel|>And no."
    assert split(text, [5, 21, 40, 50], tags)[1] == ReasonedText("Yes. And no.", "Hm.\n\nSo.")


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["Hm.", " ", "\n", "<|", "<", *SPECIAL]), max_size=6),
    st.lists(st.integers(0, 90), max_size=8),
)
def test_tokens_of_a_family_do_not_depend_on_chunks(parts: list[str], cuts: list[int]) -> None:
    text = "".join(SPECIAL[part][1] if part in SPECIAL else part for part in parts)
    for name, (opening, _) in SPECIAL.items():
        tags = reasoning_tags_of(opening, "")
        assert (name, split(text, cuts, tags)[1]) == (name, split(text, [], tags)[1])


def test_reasoning_that_the_prompt_opened_needs_no_opening_tag() -> None:
    assert split("\nhm</think>\nYes.", [3, 6], OPENED)[1] == ReasonedText("Yes.", reasoning="hm")


@given(st.text("<think>/ab\n", max_size=40), st.lists(st.integers(0, 40), max_size=8), st.sampled_from([TAGS, OPENED]))
def test_parsing_does_not_depend_on_chunks(text: str, cuts: list[int], tags: ReasoningTags) -> None:
    assert split(text, cuts, tags)[1] == split(text, [], tags)[1]


@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_text_of_a_model_without_reasoning_is_passed_on_at_once(text: str, cuts: list[int]) -> None:
    shown, whole = split(text, cuts, ReasoningTags())
    assert whole == ReasonedText(text)
    assert shown[-1] == ReasonedText()


@pytest.mark.parametrize(
    ("template", "prompt", "tags"),
    [
        ("{{ messages }}", "x", ReasoningTags()),
        ("… <think></think> …", "<user>hi\n<assistant>", TAGS),
        ("… </think> …", "<user>hi\n<assistant><think>\n", OPENED),
        ("… </think> …", "<assistant><think>\n\n</think>\n\n", TAGS),
        ("[THINK] …", "x", ReasoningTags("[THINK]", "[/THINK]")),
    ],
)
def test_the_chat_template_determines_the_tags_and_the_prompt_whether_one_is_open(
    template: str, prompt: str, tags: ReasoningTags
) -> None:
    assert reasoning_tags_of(template, prompt) == tags
