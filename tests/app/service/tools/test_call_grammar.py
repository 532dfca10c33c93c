from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.answer_text import NO_REASONING, ReasoningParser, ReasoningTags
from app.engine.grammar.gbnf import GbnfRules, text_through
from app.engine.grammar.limits import check_grammar
from app.service.tools.call_grammar import call_grammar
from app.service.tools.tool import Tool, ToolOptions
from quantizer.errors import RequestError
from tests.app.call_texts import FAMILIES, family, split
from tests.app.gbnf_texts import Grammar

WALK = Tool(
    "walk",
    "",
    {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "how": {"type": "string", "enum": ["slowly", "fast"]},
            "steps": {"type": "integer"},
            "with": {"type": "array", "items": {"$ref": "#/$defs/who"}, "maxItems": 2},
        },
        "required": ["to", "steps"],
        "$defs": {"who": {"enum": ["Ann", "Bob"]}},
    },
)
STOP = Tool("stop")
OFFER = ToolOptions(tools=(WALK, STOP), must_call=True)


def check_call(name: str, arguments: dict[str, Any]) -> None:
    if name == "walk":
        assert {"to", "steps"} <= arguments.keys() <= {"to", "how", "steps", "with"}
        assert isinstance(arguments["to"], str)
        assert isinstance(arguments["steps"], int)
        assert arguments.get("how", "fast") in ("slowly", "fast")
        assert set(arguments.get("with", [])) <= {"Ann", "Bob"}
    else:
        assert name == "stop"


@pytest.mark.parametrize("name", FAMILIES)
def test_text_of_the_grammar_parses_as_calls_that_fit_their_schemas(name: str) -> None:
    text = call_grammar(family(name), OFFER, NO_REASONING)
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(name)
    seen = set()
    for _ in range(40):
        parsed = split(family(name), grammar.sample(chance), [10, 40, 41, 80], OFFER)
        assert parsed.text.strip() == ""
        for call in parsed.calls:
            check_call(call.name, json.loads(call.arguments))
        seen.add(len(parsed.calls))
    assert 0 not in seen
    assert max(seen) > 1 or family(name).syntax.between is None


def test_a_named_tool_is_called_once() -> None:
    offer = ToolOptions(tools=(WALK, STOP), must_call=True, only="stop", is_parallel=False)
    grammar, chance = Grammar(call_grammar(family("hermes"), offer, NO_REASONING)), random.Random(1)
    for _ in range(20):
        parsed = split(family("hermes"), grammar.sample(chance), [], offer)
        assert [call.name for call in parsed.calls] == ["stop"]


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_may_come_first(is_open: bool) -> None:
    thinking = ReasoningTags("<think>", "</think>", is_open)
    grammar, chance = Grammar(call_grammar(family("hermes"), OFFER, thinking)), random.Random(2)
    n_thoughts = 0
    for _ in range(40):
        text = grammar.sample(chance)
        splitter = ReasoningParser(thinking)
        said = splitter.push(text).text + splitter.finish().text
        n_thoughts += "</think>" in text
        assert split(family("hermes"), said, [], OFFER).calls
    assert n_thoughts == 40 if is_open else 0 < n_thoughts < 40


def test_a_text_up_to_a_tag_holds_it_once_at_its_end() -> None:
    for tag in ("</a>", "\n</p>", "aab"):
        rules = GbnfRules()
        grammar, chance = Grammar(rules.text(text_through(tag, rules))), random.Random(3)
        for _ in range(200):
            text = grammar.sample(chance)
            assert text.index(tag) == len(text) - len(tag)


@pytest.mark.parametrize(
    ("name", "schema", "word"),
    [
        ("hermes", {"type": "string"}, "object"),
        ("hermes", {"properties": {"a": {"type": "string", "not": {}}}}, "'not'"),
        ("glm", {"properties": {"a": {"type": "string", "minLength": 3}}}, "enum"),
        ("glm", {"anyOf": [{"required": ["a"]}]}, "properties"),
        ("glm", {"properties": {}, "required": ["a"]}, "properties"),
    ],
)
def test_an_unsupported_schema_is_refused(name: str, schema: dict[str, Any], word: str) -> None:
    with pytest.raises(RequestError, match=word):
        call_grammar(family(name), ToolOptions(tools=(Tool("a", "", schema),), must_call=True), NO_REASONING)


@pytest.mark.parametrize(
    ("offer", "word"),
    [
        (lambda: Tool("a b"), "name 'a b' is invalid"),
        (lambda: ToolOptions(tools=(STOP, STOP)), "Two tools"),
        (lambda: ToolOptions(tools=tuple(Tool(f"t{number}") for number in range(129))), "129"),
        (lambda: ToolOptions(tools=(STOP,), only="go", must_call=True), "'go'"),
        (lambda: ToolOptions(must_call=True), "no tools"),
    ],
)
def test_invalid_tool_options_are_refused(offer: Any, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        offer()
