"""Arguments of a call against the schema of its tool: what is refused, and that nothing allowed ever is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.argument_check import MAX_ARGUMENT_CHARACTERS, ArgumentsError, read_arguments

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "line": {"type": "integer", "minimum": 1},
        "mode": {"enum": ["text", "regex"]},
        "edits": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/edit"}},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {"edit": {"type": "object", "required": ["old"], "properties": {"old": {"type": ["string", "null"]}}}},
}


def test_arguments_that_fit_are_returned() -> None:
    text = '{"path": "a", "line": 3.0, "mode": "text", "edits": [{"old": null}]}'
    assert read_arguments(text, EDIT) == json.loads(text)


def test_a_call_without_arguments_has_none() -> None:
    assert read_arguments("", {"type": "object"}) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", 'The arguments must have "path".'),
        ('{"path": 3}', "path: must be of type string."),
        ('{"path": ""}', "path: must have at least 1 characters."),
        ('{"path": "a", "line": 0}', "line: must be at least 1."),
        ('{"path": "a", "line": true}', "line: must be of type integer."),
        ('{"path": "a", "line": 1.5}', "line: must be of type integer."),
        ('{"path": "a", "mode": "glob"}', 'mode: must be one of ["text", "regex"].'),
        ('{"path": "a", "force": true}', 'The arguments must not have "force".'),
        ('{"path": "a", "edits": [{}]}', 'edits[0]: must have "old".'),
        ('{"path": "a", "edits": [{"old": 1}]}', "edits[0].old: must be of type string or null."),
        ('{"path": "a", "edits": [{"old": ""}, {"old": ""}, {"old": ""}]}', "edits: must have at most 2 items."),
        ("[]", "The arguments are not a JSON object."),
        ('{"path"', "The arguments are not valid JSON"),
        ('{"path": NaN}', "NaN is not a JSON number"),
        ("[" * 200_000, "nested too deep"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_place(text: str, told: str) -> None:
    with pytest.raises(ArgumentsError) as refused:
        read_arguments(text, EDIT)
    assert told in str(refused.value)


def test_endless_arguments_are_refused_before_they_are_read() -> None:
    with pytest.raises(ArgumentsError, match="more than"):
        read_arguments(" " * (MAX_ARGUMENT_CHARACTERS + 1), {})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}] * 50},
        {"additionalProperties": {"$ref": "#/additionalProperties"}},
        {"$ref": "https://evil.example/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"properties": 5, "required": {"a": 1}, "items": "x", "type": 7, "enum": "abc", "minimum": "a"},
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"type": ["string", "of a future draft"]},
    ],
)
def test_a_hostile_schema_neither_hangs_nor_fails(schema: dict[str, Any]) -> None:
    assert read_arguments('{"a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"}', schema)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0, "", "a", "b", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
_TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])
_SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({}, optional={"type": _TYPES, "const": _VALUES, "minimum": st.integers(-2, 2)}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(_VALUES, min_size=1, max_size=3),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "maxItems": st.integers(0, 2),
            "minLength": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "exclusiveMaximum": st.integers(-2, 2),
        },
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abc"), _VALUES, max_size=3), _SCHEMAS)
def test_of_the_keywords_that_it_knows_it_says_the_same_as_a_whole_validator(
    arguments: dict[str, Any], schema: Any
) -> None:
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(arguments)
    try:
        read_arguments(json.dumps(arguments), schema)
    except ArgumentsError:
        assert not is_valid
    else:
        assert is_valid


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        # from the JSON Schema Test Suite: dynamicRef.json and vocabulary.json of 2020-12, ref.json of draft 7
        ({"a": ["foo"]}, {"type": "object", "properties": {"a": {"items": {"$ref": "#an-anchor"}}}}),
        ({"a": 1}, {"$schema": "http://localhost/no-validation.json", "properties": {"a": {"minimum": 10}}}),
        ({"a": [1]}, {"properties": {"a": {"$ref": "#/$defs/b", "maxItems": 0}}, "$defs": {"b": {"type": "array"}}}),
        ({"a": 1}, {"properties": {"a": {"$id": "b", "$ref": "#/$defs/c"}}, "$defs": {"c": {"type": "null"}}}),
    ],
)
def test_what_another_validator_reads_otherwise_is_left_to_the_server(
    arguments: dict[str, Any], schema: dict[str, Any]
) -> None:
    assert read_arguments(json.dumps(arguments), schema) == arguments
