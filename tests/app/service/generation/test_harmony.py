from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.common.answer_text import HARMONY
from app.protocol.chat import AnswerDelta
from app.service.generation.generation import answer_parser
from app.service.generation.harmony import HARMONY_TAGS, HarmonyParser
from app.service.tools.parser import NO_TOOLS, ToolOptions
from tests.app.call_texts import OFFER, told_by

ANALYSIS = "<|channel|>analysis<|message|>We should look.<|end|>"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Åre","days":3}<|call|>'
WEATHER_CALL = ("get_weather", {"city": "Åre", "days": 3})


def split(
    text: str,
    cuts: list[int],
    offer: ToolOptions = OFFER,
    *,
    begins_in_text: bool = False,
    separates_reasoning: bool = True,
) -> AnswerDelta:
    """Return all that is told of `text`, coming in pieces."""
    parser = HarmonyParser(
        offer, begins_in_text=begins_in_text, separates_reasoning=separates_reasoning, new_id=lambda: "ID"
    )
    return told_by(parser, text, cuts)


def parts(parsed: AnswerDelta) -> tuple[str, str, list[tuple[str, object]]]:
    return parsed.reasoning, parsed.text, [(call.name, json.loads(call.arguments)) for call in parsed.calls]


# Outputs of GPT-OSS after the prompt's `<|start|>assistant`: reasoning, text and calls. Those that are whole have the
# forms of OpenAI's "Harmony response format" (developers.openai.com/cookbook/articles/openai-harmony) and of the
# template of gpt-oss-120b. The damaged ones are reported in issues of llama.cpp (27720), Dynamo (10366: half of the
# calls of gpt-oss-120b are in the analysis), vllm-mlx (562) and others.
WHOLE = {
    "a thought and an answer": (
        "<|channel|>analysis<|message|>User asks: 2 + 2. Simple.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
        ("User asks: 2 + 2. Simple.", "2 + 2 = 4.", []),
    ),
    "an answer alone": ("<|channel|>final<|message|>Hi!\n", ("", "Hi!\n", [])),
    "a call with its recipient after the channel": (
        f"{ANALYSIS}<|start|>assistant{CALL}",
        ("We should look.", "", [WEATHER_CALL]),
    ),
    "a call with its recipient in the role, as the template writes earlier ones": (
        f"{ANALYSIS}<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city": "Åre", "days": 3}<|call|>',
        ("We should look.", "", [WEATHER_CALL]),
    ),
    "a call as the first message": (
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Åre", "days": 3}',
        ("", "", [WEATHER_CALL]),
    ),
    "a plan for the user before a call": (
        f"{ANALYSIS}<|start|>assistant<|channel|>commentary<|message|>I look at the weather.<|end|>"
        f"<|start|>assistant{CALL}",
        ("We should look.", "I look at the weather.", [WEATHER_CALL]),
    ),
    "several calls": (
        f"{CALL}<|start|>assistant<|channel|>commentary to=functions.now<|message|>{{}}<|call|>",
        ("", "", [WEATHER_CALL, ("now", {})]),
    ),
    "a call in the analysis": (
        '<|channel|>analysis to=functions.get_weather code<|message|>{"city": "Åre", "days": 3}<|call|>',
        ("", "", [WEATHER_CALL]),
    ),
    "several thoughts": (
        f"{ANALYSIS}<|start|>assistant<|channel|>analysis<|message|>\nThen answer. <|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes.",
        ("We should look.\n\nThen answer.", "Yes.", []),
    ),
    "an answer of a schema": ('<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', ("", '{"a": 1}', [])),
    "an answer of a schema without the tag": ('<|channel|>final json<|message|>{"a": 1}', ("", '{"a": 1}', [])),
}
DAMAGED = {
    "no header": ("Hello, to=you", ("", "Hello, to=you", [])),
    "no <|start|>": (f"{ANALYSIS}<|channel|>final<|message|>Yes.", ("We should look.", "Yes.", [])),
    "no <|start|> before the role": (
        f"{ANALYSIS}assistant<|channel|>final<|message|>Yes.",
        ("We should look.", "Yes.", []),
    ),
    "no role": (f"{ANALYSIS}<|start|><|channel|>final<|message|>Yes.", ("We should look.", "Yes.", [])),
    "no channel": ("<|message|>Yes.<|return|>", ("", "Yes.", [])),
    "no end": (
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Yes.",
        ("Hm.", "Yes.", []),
    ),
    "no end and no <|start|>": (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
        ("Hm.", "Yes.", []),
    ),
    "no <|message|>": (
        f"{ANALYSIS}<|start|>assistant<|channel|>final Yes, sure.<|return|>",
        ("We should look.", " Yes, sure.", []),
    ),
    "no <|message|> and one word": ("<|channel|>final Yes<|return|>", ("", " Yes", [])),
    "no channel and no <|message|>": (f"{ANALYSIS}<|start|>assistant Yes.", ("We should look.", " Yes.", [])),
    "question marks for a channel": (
        "<|channel|>??<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes.",
        ("Hm.", "Yes.", []),
    ),
    "a channel twice": (
        "<|channel|>commentary to=assistant<|channel|>commentary?commentary?<|message|>I look.<|end|>",
        ("", "I look.", []),
    ),
    "no content": ("<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>Yes.", ("", "Yes.", [])),
    "a second <|start|>": (
        f"{ANALYSIS}<|start|>assistant<|start|>assistant<|channel|>final<|message|>Yes.",
        ("We should look.", "Yes.", []),
    ),
    "a second channel": (
        "<|channel|>commentary to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
        '{"city": "Åre", "days": 3}<|call|>',
        ("", "", [WEATHER_CALL]),
    ),
    "a recipient after the form": (
        '<|channel|>commentary <|constrain|>json to=functions.get_weather<|message|>{"city": "Åre", "days": 3}',
        ("", "", [WEATHER_CALL]),
    ),
    "a recipient without its namespace": (
        '<|channel|>commentary to=get_weather<|message|>{"city": "Åre", "days": 3}',
        ("", "", [WEATHER_CALL]),
    ),
    "a word after the channel": (
        "<|channel|>analysis code<|message|>Hm.<|end|><|channel|>finalassistant<|message|>Yes.",
        ("Hm.", "Yes.", []),
    ),
    "a brace too many": (CALL.replace("<|call|>", "}<|call|>"), ("", "", [WEATHER_CALL])),
    "a call without content": ("<|channel|>commentary to=functions.now<|message|><|call|>", ("", "", [("now", {})])),
    "a result that the model makes up": (
        f"{CALL}<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>Sunny.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It is sunny.",
        ("Sunny.", "It is sunny.", [WEATHER_CALL]),
    ),
    "a tag in an argument": (
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "<|end|>{", "days": 3}<|call|>',
        ("", "", [("get_weather", {"city": "<|end|>{", "days": 3})]),
    ),
    "a header that is cut": (f"{ANALYSIS}<|start|>assistant<|channel|>fin", ("We should look.", "", [])),
    "a call of an unknown tool": (
        '<|channel|>commentary to=browser.search<|message|>{"q": 1}<|call|>',
        ("", '<|channel|>commentary to=browser.search<|message|>{"q": 1}<|call|>', []),
    ),
    "code where arguments belong": (
        "<|channel|>commentary to=functions.now<|message|>print(1)<|call|>",
        ("", "<|channel|>commentary to=functions.now<|message|>print(1)<|call|>", []),
    ),
    "an unknown tool in the analysis": ("<|channel|>analysis to=python code<|message|>1+1<|call|>", ("1+1", "", [])),
}
OUTPUTS = WHOLE | DAMAGED


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 300), max_size=8))
@example(cuts=list(range(400)))
@example(cuts=[])
def test_an_answer_is_split_in_any_chunks(cuts: list[int]) -> None:
    for name, (text, expected) in OUTPUTS.items():
        assert (name, parts(split(text, cuts))) == (name, expected)


PIECES = st.lists(
    st.one_of(
        st.sampled_from(HARMONY_TAGS),
        st.sampled_from(["analysis", "commentary", "final", "assistant", " to=functions.now", " to=x", "json", "{}"]),
        st.sampled_from([text for text, _ in OUTPUTS.values()]),
        st.text("<|>to={}\" \nab", max_size=12),
        st.text("ab ", min_size=250, max_size=270),
    ),
    max_size=7,
).map("".join)  # fmt: skip


@given(text=PIECES, cuts=st.lists(st.integers(0, 600), max_size=10), begins=st.booleans(), separates=st.booleans())
def test_the_parts_of_an_answer_do_not_depend_on_chunks(
    text: str, cuts: list[int], begins: bool, separates: bool
) -> None:
    whole = split(text, [], begins_in_text=begins, separates_reasoning=separates)
    assert split(text, cuts, begins_in_text=begins, separates_reasoning=separates) == whole
    assert split(text, list(range(len(text))), begins_in_text=begins, separates_reasoning=separates) == whole


def test_arguments_stream_while_they_are_made() -> None:
    parser = HarmonyParser(OFFER, new_id=lambda: "ID")
    assert parser.push("<|channel|>commentary to=functions.get_weather json<|message|>") == AnswerDelta()
    assert [call.arguments for call in parser.push('{"city": "Å').calls] == ['{"city": "Å']
    assert [call.arguments for call in parser.push('re"}<|ca').calls] == ['re"}']
    assert parser.push("ll|>", is_final=True) == AnswerDelta()


def test_one_call_only_is_made_where_several_are_not_wanted() -> None:
    offer = ToolOptions(tools=OFFER.tools, is_parallel=False)
    text = f"{CALL}<|start|>assistant<|channel|>commentary to=functions.now<|message|>{{}}<|call|>"
    assert [call.name for call in split(text, [], offer).calls] == ["get_weather"]


def test_a_call_of_a_tool_that_was_not_offered_is_text() -> None:
    assert split(CALL, [], NO_TOOLS) == AnswerDelta(CALL)


def test_reasoning_that_is_not_separated_keeps_its_tags() -> None:
    text = f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Yes."
    assert split(text, [], separates_reasoning=False) == AnswerDelta(f"{ANALYSIS}\n\nYes.")


def test_an_answer_that_the_prompt_has_begun_has_no_header() -> None:
    assert split("and so on.<|return|>", [5], begins_in_text=True) == AnswerDelta("and so on.")


def test_harmony_is_read_where_the_template_writes_it() -> None:
    assert isinstance(answer_parser(HARMONY, None), HarmonyParser)
