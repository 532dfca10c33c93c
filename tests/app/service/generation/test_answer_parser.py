from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.common.answer_text import ANY_FAMILY, HARMONY, NO_REASONING, ReasoningTags
from app.protocol.chat import AnswerDelta, with_deltas
from app.service.generation.generation import answer_parser
from app.service.tools.formats import tool_format_of
from app.service.tools.parser import NO_TOOLS, ToolCalling, ToolOptions
from tests.app.call_texts import ARGUMENTS, FAMILIES, OFFER, call_text, family, told_by

TAGS = ReasoningTags("<think>", "</think>")
CALL = call_text("hermes")


def split(text: str, cuts: list[int], offer: ToolOptions = OFFER) -> tuple[str, str, list[object]]:
    """Return reasoning, text, and the arguments of the calls of an answer that comes in pieces."""
    return parts(told_by(answer_parser(TAGS, ToolCalling(family("hermes"), offer)), text, cuts))


def parts(parsed: AnswerDelta) -> tuple[str, str, list[object]]:
    return parsed.reasoning, parsed.text, [call.arguments_object() for call in with_deltas((), parsed.calls)]


@pytest.mark.parametrize(
    ("text", "n_calls"),
    [
        (f"<think>I look.\n{CALL}", 1),  # Kimi K2 Thinking, Qwen3.5: agents asked again and again
        (f"<think>I look.\n{CALL}\n{CALL}\n", 1),
        (f"<think>I look.\n{CALL}</think>\n", 1),
        (f"<think>I write <tool_call> and then\n{CALL}", 1),
        (f"<think>I look.</think>{CALL}", 1),
        (f"<think>I may do\n{CALL}\nor not", 0),
        (f"<think>I may do\n{CALL}</think>No.", 0),
        (f"<think>I may do\n{CALL[:-20]}", 0),
        (f"<think>I may do\n{CALL.replace('get_weather', 'gone')}", 0),
        ("<think>I may do <tool_call>", 0),
    ],
)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 150), max_size=6))
@example(cuts=list(range(200)))
def test_a_call_that_unended_reasoning_ends_with_is_made(text: str, n_calls: int, cuts: list[int]) -> None:
    _, _, calls = split(text, cuts)
    assert calls == [ARGUMENTS] * n_calls


def test_reasoning_and_text_stay_as_they_are() -> None:
    reasoning, said, _ = split(f"<think>I look.\n{CALL}", [])
    assert (reasoning, said) == (f"I look.\n{CALL}", "")


def test_no_call_is_made_of_tools_that_were_not_offered() -> None:
    assert split(f"<think>I look.\n{CALL}", [], NO_TOOLS)[2] == []


# What a string of JSON may quote: it is neither reasoning nor a call, and stays.
QUOTED = [call_text(name) for name in FAMILIES] + [
    "<|channel|>final<|message|>",
    "<|end|><|start|>assistant",
    "<|channel|>commentary to=functions.get_weather <|message|>{}",
    *(text for tags in ANY_FAMILY for text in (tags.opening, tags.closing, *tags.dropped, *tags.around_text) if text),
]


@settings(max_examples=25)
@given(quoted=st.sampled_from(QUOTED), cuts=st.lists(st.integers(0, 150), max_size=6))
@example(quoted="<|channel|>final<|message|>", cuts=list(range(150)))
@pytest.mark.parametrize("name", [*FAMILIES, "gpt-oss"])
def test_verbatim_text_keeps_every_tag_that_it_quotes(name: str, quoted: str, cuts: list[int]) -> None:
    tool_format = tool_format_of(HARMONY.opening) if name == "gpt-oss" else family(name)
    assert tool_format is not None
    text = json.dumps({"answer": quoted})
    for tags in (HARMONY,) if name == "gpt-oss" else (NO_REASONING, *ANY_FAMILY):
        parser = answer_parser(tags, ToolCalling(tool_format, OFFER), is_verbatim=True)
        thought = f"{tags.opening}I see.{tags.closing}" if tags.opening else ""
        written = f"{thought}{tags.before_text}{text}".removeprefix(tags.begun)  # where the prompt has begun it
        reasoning, said, calls = parts(told_by(parser, written, cuts))
        assert (reasoning, said, calls) == ("I see." if thought else "", text, [])


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 150), max_size=6))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_in_the_place_of_verbatim_text_is_made(name: str, cuts: list[int]) -> None:
    parser = answer_parser(TAGS, ToolCalling(family(name), OFFER), is_verbatim=True)
    assert parts(told_by(parser, f"<think>I look.</think>{call_text(name)}", cuts)) == ("I look.", "", [ARGUMENTS])


def test_calls_behind_reasoning_that_is_not_separated_are_made_beside_verbatim_text() -> None:
    calling = ToolCalling(family("hermes"), OFFER)
    parser = answer_parser(TAGS, calling, separates_reasoning=False, is_verbatim=True)
    assert parts(told_by(parser, f"<think>I look.</think>{CALL}", []))[2] == [ARGUMENTS]
