from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.protocol.chat import AnswerDelta, Tool, ToolCallDelta, with_deltas
from app.service.tools.formats import GENERIC, tool_format_of
from app.service.tools.parser import ToolCallParser, ToolOptions
from tests.app.call_texts import ARGUMENTS, FAMILIES, OFFER, WEATHER, call_text, family, split


def names_and_arguments(parsed: AnswerDelta) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in parsed.calls]


@pytest.mark.slow
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
@example(cuts=list(range(250)))
def test_a_call_of_each_format_is_parsed_in_any_chunks(cuts: list[int]) -> None:
    for name in FAMILIES:
        parsed = split(family(name), call_text(name), cuts)
        assert (name, names_and_arguments(parsed)) == (name, [("get_weather", ARGUMENTS)])
        assert (name, parsed.text) == (name, "")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama-3"])
def test_text_before_and_after_a_call_is_text_without_the_blanks_between(name: str) -> None:
    parsed = split(family(name), f" Let me see. \n\n{call_text(name)}\n\nThat is it.", [7, 30, 90])
    assert parsed.text == " Let me see.That is it."
    assert len(parsed.calls) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_every_format_may_call_twice(name: str) -> None:
    other = call_text(name).replace("Åre", "Åra").replace("days", "day")
    parsed = split(family(name), f"{call_text(name)}\n{other}", [40, 100])
    assert names_and_arguments(parsed) == [("get_weather", ARGUMENTS), ("get_weather", {"city": "Åra", "day": 3})]
    assert parsed.text == ""


@pytest.mark.parametrize("cuts", [[], [40, 100], list(range(400))])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_two_calls_of_an_answer_are_equal(name: str, cuts: list[int]) -> None:
    first, other = call_text(name), call_text(name).replace("Åre", "Åra")
    parsed = split(family(name), "\n".join((first, first, other, first, other)), cuts)
    assert [arguments["city"] for _, arguments in names_and_arguments(parsed)] == ["Åre", "Åra"]
    assert [call.index for call in parsed.calls] == [0, 1]
    assert parsed.text == ""


def test_what_is_cut_off_in_a_repetition_is_no_call() -> None:
    text = f"{call_text('hermes')}\n{call_text('hermes')}"
    for end in range(len(call_text("hermes")), len(text)):
        parsed = split(GENERIC, text[:end], [])
        assert (end, names_and_arguments(parsed), parsed.text) == (end, [("get_weather", ARGUMENTS)], "")


@pytest.mark.parametrize("must_call", [False, True])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("llama-3", "llama-4")])
def test_an_answer_that_is_cut_within_a_call_has_no_tag_as_its_text(name: str, must_call: bool) -> None:
    tool_format = family(name)
    text = tool_format.written([("get_weather", ARGUMENTS), ("now", {})])
    offer = ToolOptions(tools=OFFER.tools, must_call=must_call)
    opening = next(tag for tag in tool_format.openings if text.startswith(tag))
    for end in range(0 if must_call else len(opening), len(text)):
        assert (end, split(tool_format, text[:end], [], offer).text) == (end, "")


TAGS = [part for _, text in FAMILIES.values() for part in (text[:12], text[-8:])]
PIECES = st.lists(
    st.one_of(
        st.sampled_from([call_text(name) for name in FAMILIES]),
        st.sampled_from([*TAGS, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", "\n", " ", '{"', "}"]),
        st.sampled_from(['{"name": "now"}', '{"arguments": {"a": 1}, "name": "now"}', '{"name": "gone", "x": {}}']),
        st.text("<tool_cal>{}[]\",:\\ \nab", max_size=12),
    ),
    max_size=6,
).map("".join)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400)
@given(name=st.sampled_from([*FAMILIES]), text=PIECES, cuts=st.lists(st.integers(0, 300), max_size=10))
def test_parsed_calls_do_not_depend_on_chunks(name: str, text: str, cuts: list[int]) -> None:
    whole = split(family(name), text, [])
    assert split(family(name), text, cuts) == whole
    assert split(family(name), text, list(range(len(text)))) == whole


@pytest.mark.slow
@settings(max_examples=400)
@given(name=st.sampled_from([*FAMILIES]), text=PIECES, cuts=st.lists(st.integers(0, 300), max_size=5))
def test_text_without_a_call_passes_unchanged(name: str, text: str, cuts: list[int]) -> None:
    nothing_to_call, tool_format = ToolOptions(tools=(Tool("never"),)), family(name)
    parsed = split(tool_format, text, cuts, nothing_to_call)
    assert parsed.calls == ()
    assert text.startswith(parsed.text)
    if left_out := text.removeprefix(parsed.text).strip():  # the end of the answer may begin a call
        assert left_out.startswith(tool_format.openings) or tool_format.bare
        assert "".join(left_out.split()) in "".join(tool_format.written([("never", {}), ("never", {})]).split())


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"nom',
        '<tool_call>{"name": "get_whether',
        "a <tool_c",
        '<tool_call>{"a": {"name": "now"}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>',
        "<tool_call>{" + '"a": 1, ' * 10_000,
    ],
)
def test_a_malformed_call_comes_back_as_text(text: str) -> None:
    assert split(GENERIC, text, [3, 15, 40]) == AnswerDelta(text)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "now"}</tool_call>', {}),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', {}),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": \\"}\\"}"}</tool_call>', {"a": "}"}),
        ('<tool_call>{"type": "function", "function": {"name": "now", "arguments": {}}}</tool_call>', {}),
        ('<tool_call>{"name": "now", "arguments": {"a": "\\"}{"}</tool_call>', {"a": '"}{'}),
        ('<tool_call>{"name": "now", "arguments": {"a": [{}]}, "id": "x"}}</tool_call>', {"a": [{}]}),
        ('<tool_call>{"name": "now", "arguments": {}}', {}),
    ],
)
def test_calls_in_slightly_other_forms_are_calls(text: str, arguments: dict[str, Any]) -> None:
    parsed = split(GENERIC, text, [5, 25, 45, 60])
    assert names_and_arguments(parsed) == [("now", arguments)]
    assert parsed.text == ""


def test_the_name_comes_first_and_then_the_arguments_as_they_come() -> None:
    splitter = ToolCallParser(GENERIC, OFFER, lambda: "ID")
    pieces = ['<tool_call>\n{"name": "get_', 'weather", "arguments": {"ci', 'ty": "Å', 're"', "}}\n</tool", "_call>"]
    assert [splitter.push(piece).calls for piece in pieces] == [
        (),
        (ToolCallDelta(0, "ID", "get_weather", '{"ci'),),
        (ToolCallDelta(0, arguments='ty": "Å'),),
        (ToolCallDelta(0, arguments='re"'),),
        (ToolCallDelta(0, arguments="}"),),
        (),
    ]


def test_strings_in_tags_stream_as_written() -> None:
    splitter = ToolCallParser(family("qwen3-coder"), OFFER, lambda: "ID")
    pieces = [
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nLong",
        ' "na',
        "me\n</para",
        "meter>\n</function>",
    ]
    parts = [part.arguments for piece in pieces for part in splitter.push(piece).calls]
    assert parts == ['{"city": "Long', ' \\"na', "me", '"}']


@pytest.mark.parametrize(
    ("value", "parsed"),
    [("3", 3), ("True", True), ("None", None), ('{"a": [1]}', {"a": [1]}), ("many", "many"), ("NaN", "NaN")],
)
def test_values_in_tags_are_json_unless_the_schema_says_string(value: str, parsed: object) -> None:
    text = f"<function=now>\n<parameter=a>\n{value}\n</parameter>\n</function>"
    assert names_and_arguments(split(family("qwen3-coder"), text, [20])) == [("now", {"a": parsed})]


@pytest.mark.parametrize("cuts", [[], [30, 45]])
def test_an_answer_that_is_cut_off_in_json_with_a_tag_in_it_has_no_whole_call(cuts: list[int]) -> None:
    begun = '<function=now>\n<parameter=a>\n[{"question": "{qu</parameter>Well.</function>'
    (call,) = with_deltas((), split(family("qwen3-coder"), begun, cuts).calls)
    assert call.arguments_object() is None
    whole = f'{begun}"}}]\n</parameter>\n</function>'
    assert names_and_arguments(split(family("qwen3-coder"), whole, cuts)) == [
        ("now", {"a": [{"question": "{qu</parameter>Well.</function>"}]})
    ]


def test_a_value_that_is_no_json_ends_with_the_first_tag_behind_it() -> None:
    text = "<function=now>\n<parameter=a>\n[not json\n</parameter>\n</function>"
    assert names_and_arguments(split(family("qwen3-coder"), text, [])) == [("now", {"a": "[not json"})]


def test_a_text_parameter_stays_text_though_it_reads_like_a_number() -> None:
    text = "<function=get_weather><parameter=city>\n75001\n</parameter></function>"
    assert names_and_arguments(split(family("qwen3-coder"), text, [])) == [("get_weather", {"city": "75001"})]


def test_models_keep_their_own_ids_where_their_templates_print_them() -> None:
    assert split(family("kimi-k2"), call_text("kimi-k2"), []).calls[0].call_id == "functions.get_weather:0"
    assert split(family("mistral"), call_text("mistral"), []).calls[0].call_id == "abcdefghi"


def test_a_second_call_is_text_where_one_is_wanted() -> None:
    text = call_text("hermes")
    parsed = split(GENERIC, text + "\n" + text, [100], ToolOptions(tools=(WEATHER,), is_parallel=False))
    assert len(parsed.calls) == 1
    assert parsed.text == text


def test_python_of_a_builtin_tool_is_text() -> None:
    text = '<|python_tag|>brave_search.call(query="x")'
    assert split(family("llama-3"), text, [4]) == AnswerDelta(text)


def test_a_template_without_calls_has_no_format() -> None:
    assert tool_format_of("{% for message in messages %}{{ message.content }}{% endfor %}") is None
