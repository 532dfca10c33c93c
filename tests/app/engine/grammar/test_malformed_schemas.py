"""Malformed schemas and regular expressions: each is one type of error, that names where it is."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.grammar.gbnf import SchemaError, check_grammar, with_plain_values
from app.engine.grammar.json_grammar import JsonFormat, schema_grammar
from app.engine.grammar.pattern import RawText, limited_pattern, parse_pattern, whole_text_pattern
from app.protocol.chat import Tool
from app.protocol.errors import RequestError
from app.service.tools.call_grammar import CallEnd, argument_grammar
from app.service.tools.parser import ToolOptions
from tests.app.call_texts import FAMILIES, family
from tests.app.malformed_schemas import EXPRESSIONS, schemas

FORMS = list({repr(each.arguments): each.arguments for each in map(family, FAMILIES)}.values())
EXPRESSIONS_WITHOUT_A_NUMBER = [
    r"\x-1", r"\x+1", r"\x 1", r"\x1", r"\x_1", r"\u{-1}", r"\u{}", r"\u{1_0}", r"\u{ 1}", r"\u-001", r"\u12", "\\x٣٣",
]  # fmt: skip
FAULTS = [
    ({"properties": {"a": {"pattern": r"\x-1"}}}, r"#/properties/a: The schema's pattern '\\x-1'"),
    ({"properties": {"a/~": {"minimum": 1e30}}}, "#/properties/a~1~0: A part of the schema allows no value."),
    ({"items": {"type": "text"}}, "#/items: The schema's type is 'text'."),
    ({"prefixItems": [True, {"not": {}}]}, "#/prefixItems/1: The schema's keyword 'not' is not supported."),
    ({"additionalProperties": {"maxLength": 1, "minLength": 2}}, "#/additionalProperties: The schema's maxLength"),
    ({"anyOf": [{"items": {"type": "text"}}]}, "#/anyOf/0/items: The schema's type is 'text'."),
    ({"$ref": "#/$defs/b", "$defs": {"b": {"enum": []}}}, "#/$defs/b: The schema's enum"),
    ({"allOf": [{"properties": "a"}]}, "The schema is malformed: #/allOf/0/properties must be an object"),
    ({"required": [["a", 1]]}, "The schema is malformed: #/required must be a list of names."),
]


@pytest.mark.parametrize("expression", EXPRESSIONS_WITHOUT_A_NUMBER)
def test_an_escape_without_hexadecimal_digits_is_refused(expression: str) -> None:
    with pytest.raises(SchemaError, match="without a number"):
        whole_text_pattern(expression)


@pytest.mark.parametrize("bound", [1e30, 10**30, 1e299, 10**299 + 1])
def test_a_bound_beyond_all_digits_excludes_nothing_or_everything(bound: float) -> None:
    assert schema_grammar({"maximum": bound})
    assert schema_grammar({"exclusiveMinimum": -bound})
    for keyword, value in (("minimum", bound), ("exclusiveMinimum", bound), ("maximum", -bound)):
        with pytest.raises(SchemaError, match="allows no value"):
            schema_grammar({keyword: value})


@pytest.mark.parametrize(("schema", "cause"), FAULTS)
def test_the_error_names_the_place_in_the_schema(schema: Any, cause: str) -> None:
    with pytest.raises(SchemaError) as refused:
        JsonFormat(schema)

    assert refused.value.cause.startswith(cause)


@pytest.mark.parametrize("parameters", [{"properties": "a"}, {"required": [["a", 1]]}, {"properties": {"a": 3}}])
def test_a_tool_with_malformed_parameters_is_refused_with_its_name_and_the_place(parameters: Any) -> None:
    with pytest.raises(RequestError, match=r"The parameters of the tool look are malformed: #/\w+"):
        ToolOptions(tools=(Tool("look", "", parameters),))


@given(schemas())
def test_any_schema_becomes_a_grammar_within_the_limits_or_one_type_of_error(schema: Any) -> None:
    with suppress(RequestError):
        answer_format = JsonFormat(schema)
        check_grammar(answer_format.grammar)
        assert all(answer_format.notices) or not answer_format.notices


@given(EXPRESSIONS)
def test_any_regular_expression_becomes_a_grammar_within_the_limits_or_one_type_of_error(expression: str) -> None:
    for parse in (whole_text_pattern, lambda text: parse_pattern(text).text):
        with suppress(RequestError):
            check_grammar(f"root ::= {parse(expression)}")
    for shortest, longest in ((2, 7), (0, 3), (5, None)):
        with suppress(RequestError):
            limited_pattern(expression, shortest, longest, RawText("<"))


@pytest.mark.slow
@given(schemas().filter(lambda schema: isinstance(schema, dict)), st.sampled_from(FORMS))
def test_any_parameters_of_a_tool_have_a_grammar_and_a_reader_in_every_form(parameters: Any, form: Any) -> None:
    grammar = argument_grammar(CallEnd(form, "</end>"), Tool("look", "", parameters))

    check_grammar(with_plain_values(grammar.text))
    reader = form.reader(parameters)
    reader.push('<parameter=a>\n1</parameter>{"a": 1}')
    reader.finish()


_SLOW = "^" + "[a-z]{1,3}-" * 180 + "$"  # with a length that it cannot have, it is read eleven times


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"pattern": _SLOW, "maxLength": 9}}, "anyOf": [{"$ref": "#/$defs/a"}] * 1_900},
        {"anyOf": [{"pattern": _SLOW, "maxLength": 9}] * 1_900},
        {"properties": {f"p{number}": {"anyOf": [{"pattern": _SLOW, "maxLength": 9}, {}]} for number in range(500)}},
    ],
    ids=["the same reference", "a union", "properties"],
)
def test_patterns_are_read_for_a_bounded_time(schema: Any) -> None:
    begun_s = time.process_time()
    with pytest.raises(SchemaError):
        JsonFormat(schema)
    assert time.process_time() - begun_s < 30, "it took minutes before it had a bound"
