from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.common.answer_text import HARMONY, NO_REASONING, ReasoningTags, reasoning_tags_of
from app.engine.grammar.gbnf import GbnfRules, check_grammar, text_through, with_plain_values
from app.engine.grammar.json_grammar import JsonFormat
from app.protocol.chat import AnswerDelta, Tool, joined_deltas
from app.protocol.errors import RequestError
from app.service.generation.generation import answer_parser
from app.service.generation.harmony import HARMONY_BOUNDS
from app.service.tools.argument_forms import JsonForm
from app.service.tools.call_grammar import CallEnd, answer_grammar, argument_grammar, bound_calls
from app.service.tools.formats import ToolFormat, tool_format_of
from app.service.tools.parser import MAX_TOOLS, ToolCalling, ToolOptions
from tests.app.call_texts import FAMILIES, family
from tests.app.gbnf_texts import Grammar
from tests.app.spoken_answers import spoken

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
            "name": {"type": "string", "minLength": 2, "maxLength": 40},
            "code": {"type": "string", "pattern": "^[a-z]{2}-[0-9]+$"},
            "mood": {"enum": ["good", "bad"]},
            "pace": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "required": ["to", "steps"],
        "$defs": {"who": {"enum": ["Ann", "Bob"]}},
    },
)
STOP, STOP_NOW = Tool("stop"), Tool("stop_now", "", {"properties": {}})
OFFER = ToolOptions(tools=(WALK, STOP, STOP_NOW))
MUST = ToolOptions(tools=OFFER.tools, must_call=True)
ANSWER = JsonFormat({"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]})
THINKING = ReasoningTags("<think>", "</think>")
ALL = [*FAMILIES, "gpt-oss"]


def known(name: str) -> tuple[ToolFormat, ReasoningTags]:
    if name != "gpt-oss":
        return family(name), NO_REASONING
    harmony = tool_format_of(HARMONY.opening)
    assert harmony is not None
    return harmony, HARMONY


def parsed(text: str, tags: ReasoningTags, calling: ToolCalling | None, n_each: int = 10**6) -> AnswerDelta:
    """Return all parts of `text`, coming in pieces of `n_each` characters."""
    parser = answer_parser(tags, calling)
    told = [parser.push(text[begin : begin + n_each]) for begin in range(0, len(text), n_each)]
    told.append(parser.push("", is_final=True))
    return AnswerDelta(
        "".join(part.text for part in told),
        reasoning="".join(part.reasoning for part in told),
        calls=joined_deltas(call for part in told for call in part.calls),
    )


def fitting_calls(text: str, tags: ReasoningTags, calling: ToolCalling) -> AnswerDelta:
    """Return the parts of `text`, whose calls fit their schemas however it is cut."""
    whole = parsed(text, tags, calling)
    again = parsed(text, tags, calling, 3)
    assert (again.text, again.reasoning) == (whole.text, whole.reasoning)
    assert [(call.name, call.arguments) for call in again.calls] == [
        (call.name, call.arguments) for call in whole.calls
    ]
    parameters = {tool.name: tool.parameters for tool in calling.options.tools}
    for call in whole.calls:
        _validator(json.dumps(parameters[call.name])).validate(json.loads(call.arguments))
    return whole


@cache  # jsonschema checks a schema, by another one, whenever it is given it
def _validator(parameters: str) -> Draft202012Validator:
    schema = {"type": "object", **json.loads(parameters)}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def answers(
    name: str,
    options: ToolOptions,
    *,
    free: str = "",
    tags: ReasoningTags | None = None,
    json_format: JsonFormat | None = None,
    n: int = 8,
) -> Iterator[AnswerDelta]:
    """Yield the parts of random answers that say `free` where nothing binds them."""
    tool_format, own_tags = known(name)
    tags = tags or own_tags
    calling = ToolCalling(tool_format, options)
    rules = bound_calls(calling, tags, json_format).rules
    for grammar in (rules.begin, *rules.parts):
        check_grammar(with_plain_values(grammar))
    chance = random.Random(name + free)
    for _ in range(n):
        yield fitting_calls(spoken(rules, chance, free), tags, calling)


@pytest.mark.parametrize("name", ALL)
def test_an_answer_that_must_call_is_calls_that_fit_their_schemas(name: str) -> None:
    seen = set()
    for answer in answers(name, MUST):
        assert answer.text.strip() == ""
        seen.add(len(answer.calls))
    assert 0 not in seen
    assert max(seen) > 1 or known(name)[0].syntax.between is None


def openings_of(name: str) -> tuple[str, ...]:
    """Return the texts behind which an answer is bound."""
    tool_format = known(name)[0]
    return (tool_format.syntax.begin("walk"),) if tool_format.is_opened_by_name else tool_format.openings


def openings() -> Iterator[tuple[str, str]]:
    for name in ALL:
        yield from ((name, opening) for opening in openings_of(name))


@pytest.mark.parametrize(("name", "opening"), openings())
def test_a_call_that_begins_in_text_goes_on_as_one(name: str, opening: str) -> None:
    before = "Well. " if name != "gpt-oss" else "<|channel|>final<|message|>Well.<|end|>"
    names = set()
    for answer in answers(name, OFFER, free=f"{before}{opening}", n=12):
        if known(name)[0].answers and not answer.calls:  # what may stand there and begins no call
            assert answer.text.startswith("Well.")
            continue
        assert answer.text.strip() == "Well."
        assert answer.calls
        names |= {call.name for call in answer.calls}
    assert len(names) > 1 or names == {"walk"} == {opening[3:].strip()}


@pytest.mark.parametrize(
    ("name", "begin", "called"),
    [
        ("llama-3", '{"name": "walk"', "walk"),
        ("llama-3", '\n{ "name" :"stop",', "stop"),
        ("llama-3", '{"type": "function", "name": "stop_now", "para', "stop_now"),
        ("llama-4", "[walk(", "walk"),
        ("llama-4", '{"name": "stop"', "stop"),
        ("llama-4", '[{"name": "walk", ', "walk"),
    ],
)
def test_a_call_without_a_tag_binds_once_it_names_a_tool(name: str, begin: str, called: str) -> None:
    for answer in answers(name, OFFER, free=begin):
        assert answer.calls[0].name == called
        assert answer.text.strip() == ""


@pytest.mark.parametrize(
    "text", ['{"name": "Walter", "age": 3}', '{"walk": 1}', "[1, 2]", "walk(to=1)", 'So: {"name": "walk"}', "{}"]
)
@pytest.mark.parametrize("name", ["llama-3", "llama-4"])
def test_json_that_is_no_call_stays_as_it_is(name: str, text: str) -> None:
    for answer in answers(name, OFFER, free=text, n=2):
        assert answer == AnswerDelta(text)


def test_text_may_follow_calls_where_a_tag_closes_them() -> None:
    calling = ToolCalling(family("hermes"), OFFER)
    rules = bound_calls(calling, NO_REASONING).rules
    said = spoken(rules, random.Random(1), "<tool_call> and so on, <tool_call>. The end.")
    answer = fitting_calls(said, NO_REASONING, calling)
    assert len(answer.calls) == 2
    assert answer.text == "and so on,. The end."


@pytest.mark.parametrize("name", ALL)
def test_at_most_one_call_is_made_unless_calls_are_parallel(name: str) -> None:
    alone = ToolOptions(tools=OFFER.tools, is_parallel=False)
    opening = (*openings_of(name), "")[0]
    for answer in answers(name, alone, free=f"{opening} more {opening}"):
        assert len(answer.calls) == 1 or (known(name)[0].answers and not answer.calls)
    for answer in answers(name, ToolOptions(tools=OFFER.tools, must_call=True, only="stop", is_parallel=False)):
        assert [call.name for call in answer.calls] == ["stop"]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_may_come_before_a_call_that_must_be(name: str, is_open: bool) -> None:
    tags = ReasoningTags("<think>", "</think>", is_open=is_open)
    thoughts = {bool(answer.reasoning) for answer in answers(name, MUST, tags=tags, n=6)}
    assert True in thoughts


@pytest.mark.parametrize("name", ALL)
def test_an_answer_is_calls_or_json(name: str) -> None:
    kinds = set()
    tags = HARMONY if name == "gpt-oss" else THINKING
    for answer in answers(name, OFFER, tags=tags, json_format=ANSWER, n=12):
        if answer.calls:
            assert not answer.text.strip()
        else:
            assert isinstance(json.loads(answer.text)["degrees"], int)
        kinds.add(bool(answer.calls))
    assert kinds == {False, True}


def test_json_alone_may_follow_a_thought() -> None:
    grammar, chance = Grammar(answer_grammar(ANSWER, THINKING)), random.Random(1)
    said = [parsed(grammar.sample(chance), THINKING, None, 5) for _ in range(40)]
    assert all(isinstance(json.loads(answer.text)["degrees"], int) for answer in said)
    assert {bool(answer.reasoning) for answer in said} == {False, True}


@pytest.mark.parametrize("tags", [NO_REASONING, THINKING, replace(THINKING, is_open=True)], ids=["none", "may", "open"])
def test_json_comes_first_or_behind_a_thought_and_a_paragraph_break(tags: ReasoningTags) -> None:
    """A model that may begin with blanks writes as many as it may, and each costs a step."""
    chance = random.Random(1)
    options = replace(OFFER, tools=(WALK,))
    or_call = bound_calls(ToolCalling(family("hermes"), options), tags, ANSWER).rules.begin
    grammars = [Grammar(answer_grammar(ANSWER, tags)), Grammar(with_plain_values(or_call))]
    for grammar in grammars:
        for _ in range(60):
            thought, closing, said = grammar.sample(chance).rpartition(THINKING.closing)
            n_blanks = len(said) - len(said.lstrip())
            assert "<tool_call>" in said or n_blanks <= (2 if closing else 0), thought


HEADED = {
    "functionary-3.2": (reasoning_tags_of(">>>${recipient}", "\n\n>>>"), "all\n"),
    "muse-glimmer": (reasoning_tags_of("<atem:function_calls>", "<|start|>assistant"), " to=user<|message|>"),
}


@pytest.mark.parametrize("name", HEADED)
def test_a_header_that_the_prompt_begins_is_bound_from_there(name: str) -> None:
    tags, to_user = HEADED[name]
    calling, chance = ToolCalling(family(name), OFFER), random.Random(name)
    rules = bound_calls(calling, tags).rules
    kinds = set()
    for _ in range(30):
        said = spoken(rules, chance, "Well.")
        answer = fitting_calls(said, tags, calling)
        kinds |= {"call"} if answer.calls else {"text"} if said.startswith(to_user) else {"thought"}
        assert answer.text.strip() in ("Well.", "" if answer.calls or answer.reasoning else "Well.")
    assert kinds == {"call", "text", *(["thought"] if tags.has_reasoning else [])}


@pytest.mark.parametrize("name", HEADED)
def test_an_answer_with_headers_that_must_call_or_be_json_is_so(name: str) -> None:
    tags, _ = HEADED[name]
    for answer in answers(name, MUST, tags=tags):
        assert answer.calls
        assert answer.text.strip() == ""
    kinds = set()
    for answer in answers(name, OFFER, tags=tags, json_format=ANSWER, n=16):
        if not answer.calls:
            assert isinstance(json.loads(answer.text)["degrees"], int)
        kinds.add((bool(answer.calls), bool(answer.reasoning)))
    assert len(kinds) == (4 if tags.has_reasoning else 2)


def test_a_name_by_which_a_family_declines_to_call_is_bound_only_where_it_is_offered() -> None:
    name, free = "command-r-plus", "Action:\n```json"
    for offer, is_bound in ((OFFER, False), (ToolOptions(tools=(Tool("directly_answer"), STOP)), True)):
        rules = bound_calls(ToolCalling(family(name), offer), NO_REASONING).rules
        assert any("directly_answer" in text for text in rules.answers) is not is_bound
        assert any("directly_answer" in head.text for head in rules.heads) is is_bound
    assert bound_calls(ToolCalling(family(name), MUST), NO_REASONING).rules.answers == ()
    said = [
        spoken(bound_calls(ToolCalling(family(name), OFFER), NO_REASONING).rules, random.Random(n), free)
        for n in range(20)
    ]
    assert any("directly" in text for text in said), "the model may decline"


def test_the_prompts_of_python_in_an_answer_bind_nothing() -> None:
    tags, _ = HEADED["functionary-3.2"]
    rules = replace(bound_calls(ToolCalling(family("functionary-3.2"), OFFER), tags).rules, begun="")
    said = "Try this:\n>>> walk\n>>>print(1)\n>>> "
    assert spoken(rules, random.Random(1), said) == said


def test_each_answer_has_ids_of_its_own_where_the_model_writes_them() -> None:
    ids = [[call.call_id for call in answer.calls] for answer in answers("solar-open", MUST)]
    rules = [bound_calls(ToolCalling(family("solar-open"), MUST), NO_REASONING).rules for _ in range(2)]
    assert all(len(set(each)) == len(each) for each in ids)
    assert rules[0].heads[0].text != rules[1].heads[0].text


@pytest.mark.parametrize("name", ["hermes", "glm", "glm-4.7", "qwen3-coder", "gemma-4", "minimax-m3"])
def test_what_no_grammar_describes_is_left_out_alone_and_said(name: str) -> None:
    """Tools of MCP servers have keywords as `patternProperties`."""
    odd = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "not": {"const": "ab"}},
            "b": {"type": "integer", "minimum": 3, "maximum": 5},
        },
        "required": ["a", "b"],
    }
    options = ToolOptions(tools=(Tool("odd", "", odd), Tool("odder", "", odd), WALK), must_call=True)
    calling = ToolCalling(family(name), options)
    bound = bound_calls(calling, NO_REASONING)
    assert bound.notices == (
        "Calls of odd, odder are held to a part of their schema only: #/properties/a: The schema's keyword 'not' "
        "is not supported.",
    ) or (name != "hermes" and "odd, odder are held to a part" in bound.notices[0])
    chance, names = random.Random(name), set()
    for _ in range(30):
        for call in parsed(spoken(bound.rules, chance), NO_REASONING, calling).calls:
            names.add(call.name)
            arguments = json.loads(call.arguments)
            assert call.name == "walk" or (3 <= arguments["b"] <= 5 and isinstance(arguments["a"], str))
    assert names == {"odd", "odder", "walk"}


@pytest.mark.parametrize(
    ("described", "left", "wrong"),
    [
        ({"type": "integer", "maximum": 5, "not": {"const": 3}}, "not", [9, "a"]),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}}, "contains", [["a"], 3]),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 0.5}}, "multipleOf", [["a"], 3]),
        (
            {"type": "object", "properties": {"x": {"type": "integer", "not": {}}}, "required": ["x"]},
            "not",
            [{"x": "a"}, {}, 3],
        ),
        ({"enum": ["a", "b"], "minLength": 1}, "minLength", ["c", 3]),
        ({"type": "string", "pattern": "(?=a)a", "maxLength": 3}, "lookaround", ["abcd", 3]),
        ({"$ref": "#/$defs/odd"}, "not", ["c", 3]),
        ({"type": "array", "items": {"$ref": "#/$defs/tree"}}, "not", [[{"of": 3}], 3]),
    ],
)
def test_a_keyword_that_no_grammar_has_is_left_out_and_the_rest_of_its_property_is_kept(
    described: Mapping[str, Any], left: str, wrong: list[Any]
) -> None:
    definitions = {
        "odd": {"enum": ["a", "b"], "not": {"const": "b"}},
        "tree": {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
    }
    schema = {"type": "object", "properties": {"a": described}, "required": ["a"], "$defs": definitions}
    if "tree" in json.dumps(described):
        definitions["tree"]["not"] = {"const": 1}
    grammar = argument_grammar(CallEnd(JsonForm(), ""), Tool("odd", "", schema))
    assert left in grammar.cause
    kept = Draft202012Validator(json.loads(grammar.schema))
    assert [value for value in wrong if kept.is_valid({"a": value})] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"required": ["a"]}], "if": {}},
        {"properties": {"a": {"enum": ["x" * 70_000]}}},
        {"properties": {"a": {"type": "text"}}, "required": ["b"]},
    ],
)
@pytest.mark.parametrize("name", ["hermes", "glm", "lfm2"])
def test_a_schema_that_no_grammar_takes_leaves_a_call_with_any_arguments(name: str, schema: Mapping[str, Any]) -> None:
    calling = ToolCalling(family(name), ToolOptions(tools=(Tool("a", "", schema),), must_call=True))
    bound = bound_calls(calling, NO_REASONING)
    (notice,) = bound.notices
    assert notice.startswith("Calls of a are held to a part of their schema only: ")
    for seed in range(5):
        (call, *_) = parsed(spoken(bound.rules, random.Random(seed)), NO_REASONING, calling).calls
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.slow
def test_a_schema_that_nests_without_end_binds_no_more_than_the_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"properties": {"a": deep}}
    options = ToolOptions(tools=(Tool("deep", "", deep),))
    assert bound_calls(ToolCalling(family("hermes"), options), NO_REASONING).notices


@pytest.mark.parametrize("name", ["hermes", "glm-4.7", "qwen3-coder", "llama-4"])
def test_as_many_tools_as_there_may_be_are_bound(name: str) -> None:
    tools = tuple(Tool(f"tool_of_a_server_{number:03}", "", WALK.parameters) for number in range(MAX_TOOLS))
    calling = ToolCalling(family(name), ToolOptions(tools=tools, must_call=True, is_parallel=False))
    bound = bound_calls(calling, NO_REASONING)
    check_grammar(with_plain_values(bound.rules.begin))
    assert not bound.notices
    chance = random.Random(1)
    names = {fitting_calls(spoken(bound.rules, chance), NO_REASONING, calling).calls[0].name for _ in range(6)}
    assert len(names) > 1


def test_a_text_up_to_a_tag_holds_it_once_at_its_end() -> None:
    for tag, without in (("</a>", ()), ("\n</p>", ("</p>", "no")), ("aab", ())):
        rules = GbnfRules()
        grammar, chance = Grammar(rules.text(text_through(tag, rules, without))), random.Random(3)
        for _ in range(200):
            text = grammar.sample(chance)
            assert text.index(tag) == len(text) - len(tag)
            assert not any(other in text.removesuffix(tag) for other in without)


@pytest.mark.parametrize(
    ("offer", "word"),
    [
        (lambda: ToolOptions(tools=(Tool("a b"),)), "name 'a b' is invalid"),
        (lambda: ToolOptions(tools=(STOP, STOP)), "Two tools"),
        (lambda: ToolOptions(tools=tuple(Tool(f"t{number}") for number in range(MAX_TOOLS + 1))), "513"),
        (lambda: ToolOptions(tools=(STOP,), only="go", must_call=True), "'go'"),
        (lambda: ToolOptions(must_call=True), "no tools"),
    ],
)
def test_invalid_tool_options_are_refused(offer: Any, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        offer()


def test_the_bounds_of_harmony_end_reasoning_before_a_call() -> None:
    calling = ToolCalling(known("gpt-oss")[0], OFFER)
    rules = bound_calls(calling, HARMONY).rules
    assert all(any(opening.startswith(bound) for bound in HARMONY_BOUNDS) for opening, _ in rules.openings)
