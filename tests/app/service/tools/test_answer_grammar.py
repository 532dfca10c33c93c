from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.answer_text import HARMONY, NO_REASONING, ReasoningTags
from app.engine.grammar.json_format import JsonFormat
from app.engine.grammar.limits import check_grammar
from app.service.generation.answer_parser import answer_parser
from app.service.tools.answer_grammar import answer_grammar
from app.service.tools.formats import ToolFormat, tool_format_of
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import ParsedText, Tool, ToolOptions, merge_deltas
from quantizer.errors import RequestError
from tests.app.call_texts import FAMILIES, family
from tests.app.gbnf_texts import Grammar

ANSWER = JsonFormat({"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]})
GO = Tool("go", "", {"type": "object", "properties": {"steps": {"type": "integer"}}, "required": ["steps"]})
OFFER = ToolOptions(tools=(GO, Tool("stop")))
THINKING = ReasoningTags("<think>", "</think>")


def parsed(text: str, tags: ReasoningTags, calling: ToolCalling | None, n_each: int) -> ParsedText:
    """Return all parts of `text`, coming in pieces of `n_each` characters."""
    parser = answer_parser(tags, calling)
    told = [parser.push(text[begin : begin + n_each]) for begin in range(0, len(text), n_each)]
    told.append(parser.push("", is_final=True))
    return ParsedText(
        "".join(part.text for part in told),
        merge_deltas(call for part in told for call in part.calls),
        "".join(part.reasoning for part in told),
    )


def kind_of(answer: ParsedText) -> str:
    """Return which of the two an answer is. Fails where it is neither or both."""
    if answer.calls:
        assert not answer.text.strip()
        for call in answer.calls:
            arguments = json.loads(call.arguments)
            assert call.name == "stop" or isinstance(arguments["steps"], int)
        return "calls"
    assert isinstance(json.loads(answer.text)["degrees"], int)
    return "JSON"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_open", [False, True])
def test_an_answer_is_calls_or_json_in_the_form_of_each_family(name: str, is_open: bool) -> None:
    check(family(name), ReasoningTags("<think>", "</think>", is_open))


def test_an_answer_of_gpt_oss_is_calls_or_json_in_messages() -> None:
    tool_format = tool_format_of(HARMONY.opening)
    assert tool_format is not None
    check(tool_format, HARMONY)


def check(tool_format: ToolFormat, tags: ReasoningTags) -> None:
    """Check that texts of the grammar are calls or JSON, however they are cut."""
    calling = ToolCalling(tool_format, OFFER)
    text = answer_grammar(ANSWER, tags, calling)
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(tool_format.name)
    seen, n_thoughts = set(), 0
    for _ in range(60):
        answer = grammar.sample(chance)
        whole = parsed(answer, tags, calling, len(answer))
        seen.add(kind_of(whole))
        n_thoughts += bool(whole.reasoning)
        for n_each in (1, 2, 7):
            split = parsed(answer, tags, calling, n_each)
            assert (split.text, split.reasoning) == (whole.text, whole.reasoning)
            assert [(call.name, call.arguments) for call in split.calls] == [
                (call.name, call.arguments) for call in whole.calls
            ]
    assert seen == {"calls", "JSON"}
    assert n_thoughts


def test_json_alone_may_follow_a_thought() -> None:
    grammar, chance = Grammar(answer_grammar(ANSWER, THINKING)), random.Random(1)
    answers = [parsed(grammar.sample(chance), THINKING, None, 5) for _ in range(40)]
    assert {kind_of(answer) for answer in answers} == {"JSON"}
    assert {bool(answer.reasoning) for answer in answers} == {False, True}


def test_a_model_without_reasoning_writes_json_at_once() -> None:
    grammar, chance = Grammar(answer_grammar(ANSWER, NO_REASONING)), random.Random(2)
    for _ in range(20):
        assert isinstance(json.loads(grammar.sample(chance))["degrees"], int)


@pytest.mark.parametrize("name", ["hermes", "glm", "qwen3-coder"])
def test_a_tool_that_no_grammar_can_describe_takes_any_arguments(name: str) -> None:
    """Tools of MCP servers have keywords as `patternProperties`; without a schema of the answer they are free too."""
    odd = {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 2, "not": {"const": "ab"}}, "b": {"dependentRequired": {}}},
        "required": ["a", "c"],
        "if": {"required": ["b"]},
    }
    calling = ToolCalling(family(name), ToolOptions(tools=(Tool("odd", "", odd), GO)))
    grammar, chance = Grammar(answer_grammar(ANSWER, NO_REASONING, calling)), random.Random(name)
    names = set()
    for _ in range(60):
        for call in parsed(grammar.sample(chance), NO_REASONING, calling, 9).calls:
            names.add(call.name)
            assert isinstance(json.loads(call.arguments), dict)
            assert call.name == "odd" or isinstance(json.loads(call.arguments)["steps"], int)
    assert names == {"odd", "go"}


def test_schemas_of_very_many_tools_are_loosened_before_the_answer_is_refused() -> None:
    described: dict[str, Any] = {f"a{number}": {"enum": ["x" * 60, f"y{number}"]} for number in range(8)}
    tools = tuple(Tool(f"tool{number}", "", {"properties": described}) for number in range(100))
    other = tuple(
        Tool(f"other{number}", "", {"properties": {f"b{number}": {"enum": ["z" * 900]}}}) for number in range(20)
    )
    calling = ToolCalling(family("hermes"), ToolOptions(tools=(*tools, *other)))
    large = {"type": "object", "properties": {f"c{number}": {"enum": ["w" * 900]} for number in range(50)}}
    grammar = answer_grammar(JsonFormat(large), NO_REASONING, calling)
    check_grammar(grammar)
    assert "tool99" in grammar
    assert "z" * 900 not in grammar
    with pytest.raises(RequestError, match="too large"):
        JsonFormat({"enum": ["v" * 70_000]})
