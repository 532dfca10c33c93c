from __future__ import annotations

import json
import random
from math import inf
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.grammar.gbnf import check_grammar
from app.engine.grammar.json_grammar import schema_grammar
from app.protocol.errors import RequestError
from app.protocol.sampling import MAX_GRAMMAR_BYTES
from tests.app.gbnf_texts import Grammar

PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", 'b"\n', 1.5, None]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["age"],
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                "value": {"type": "number"},
            },
            "required": ["left", "value"],
        }
    },
}


def fits(value: Any, schema: Any, document: Any) -> bool:
    """Return whether `value` satisfies `schema`, by the standard, for the supported keywords."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = document
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        if not fits(value, target, document):
            return False
    kinds = schema.get("type", list(PYTHON_TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_typed = any(
        isinstance(value, PYTHON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean") for kind in kinds
    )
    return (
        is_typed
        and ("const" not in schema or value == schema["const"])
        and ("enum" not in schema or value in schema["enum"])
        and all(fits(value, part, document) for part in schema.get("allOf", []))
        and all(any(fits(value, part, document) for part in schema[key]) for key in ("anyOf", "oneOf") if key in schema)
        and (isinstance(value, bool) or not isinstance(value, int | float) or is_in_range(value, schema))
        and (not isinstance(value, str) or schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))
        and (not isinstance(value, list) or items_fit(value, schema, document))
        and (not isinstance(value, dict) or properties_fit(value, schema, document))
    )


def is_in_range(value: float, schema: Any) -> bool:
    return schema.get("minimum", value) <= value <= schema.get("maximum", value) and schema.get(
        "exclusiveMinimum", -inf
    ) < value < schema.get("exclusiveMaximum", inf)


def items_fit(value: list[Any], schema: Any, document: Any) -> bool:
    is_sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
    first = schema.get("prefixItems", [])
    described = [*first, *[schema.get("items", True)] * len(value)]
    return is_sized and all(fits(item, part, document) for item, part in zip(value, described, strict=False))


def properties_fit(value: dict[str, Any], schema: Any, document: Any) -> bool:
    described = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    return all(name in value for name in schema.get("required", [])) and all(
        fits(item, described.get(name, others), document) for name, item in value.items()
    )


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs)


def check_samples(schema: Any, seed: int, n_samples: int = 20) -> None:
    text = schema_grammar(schema)
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(seed)
    for _ in range(n_samples):
        answer = grammar.sample(chance)
        assert fits(json.loads(answer), schema, schema), answer


NAMES = st.sampled_from(["a", "ab", "abc", "b", "é", 'q"', "ä n"])
SCALARS = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.just({}),
    st.just(True),
    st.fixed_dictionaries({"const": st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans())}),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-9, 9)), min_size=1, max_size=3).map(lambda v: {"enum": v}),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
        lambda ends: {"type": "string", "minLength": min(ends), "maxLength": max(ends)}
    ),
    st.just({"type": ["string", "null"], "minLength": 2}),
    st.tuples(st.sampled_from(["integer", "number"]), st.integers(-300, 300), st.integers(0, 200)).map(
        lambda drawn: {"type": drawn[0], "minimum": drawn[1], "exclusiveMaximum": drawn[1] + drawn[2] + 0.5}
    ),
    st.sampled_from([{"type": "number", "exclusiveMinimum": 0.25}, {"type": "integer", "maximum": -7}]),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required, others: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            **({} if others is None else {"additionalProperties": others}),
        },
        st.dictionaries(NAMES, inner, max_size=4),
        st.sets(NAMES),
        st.one_of(st.none(), st.booleans(), inner),
    )


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(inner, st.integers(0, 2), st.one_of(st.none(), st.integers(2, 4))).map(
        lambda part: {
            "type": "array",
            "items": part[0],
            "minItems": part[1],
            **({} if part[2] is None else {"maxItems": part[2]}),
        }
    )
    tuples = st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    )
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda ways: {"anyOf": ways})
    open_object = st.dictionaries(NAMES, st.just({"type": "integer"}), max_size=3).map(
        lambda p: {"properties": p, "type": "object"}
    )
    both = st.lists(open_object, min_size=1, max_size=3).map(lambda parts: {"allOf": parts})
    return st.one_of(arrays, tuples, unions, _objects(inner), both)


SCHEMAS = st.recursive(SCALARS, _composed, max_leaves=8)


@pytest.mark.slow
@settings(max_examples=100)
@given(SCHEMAS, st.integers(0, 2**32))
def test_whatever_the_grammar_of_a_schema_allows_satisfies_the_schema(schema: Any, seed: int) -> None:
    check_samples(schema, seed, n_samples=8)


def test_a_way_that_no_grammar_has_is_left_out_where_there_is_another() -> None:
    """pydantic describes a Decimal as a number or as a string whose pattern looks ahead; both satisfy the schema."""
    text = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    schema = {"anyOf": [{"type": "number"}, text, {"type": "null"}]}
    check_samples(schema, seed=2)
    with pytest.raises(RequestError, match="lookaround"):
        schema_grammar({"anyOf": [text]})


def test_a_reference_to_a_way_that_is_left_out_is_left_out_everywhere() -> None:
    definitions = {"bad": {"type": "object", "properties": {"a": {"not": {}}}}, "good": {"type": "integer"}}
    ways = {"anyOf": [{"$ref": "#/$defs/bad"}, {"$ref": "#/$defs/good"}]}
    check_samples({"properties": {"x": ways, "y": ways}, "required": ["x", "y"], "$defs": definitions}, seed=3)
    both = {"x": ways, "y": {"$ref": "#/$defs/bad"}}
    with pytest.raises(RequestError, match="'not'"):
        schema_grammar({"properties": both, "$defs": definitions})


@pytest.mark.parametrize("schema", [PERSON, TREE])
def test_samples_of_a_known_schema_satisfy_it(schema: Any) -> None:
    check_samples(schema, seed=1, n_samples=200)


def test_any_object_is_an_object() -> None:
    grammar, chance = Grammar(schema_grammar({"type": "object"})), random.Random(3)
    for _ in range(200):
        assert isinstance(json.loads(grammar.sample(chance)), dict)


def test_optional_properties_may_be_absent() -> None:
    grammar, chance = Grammar(schema_grammar(PERSON)), random.Random(5)
    seen = {tuple(json.loads(grammar.sample(chance))) for _ in range(300)}
    assert seen == {("age",), ("name", "age"), ("age", "tags"), ("name", "age", "tags")}


def test_further_properties_never_take_a_described_name() -> None:
    schema = {
        "properties": {"a": {"type": "null"}, "ab": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    }
    grammar, chance = Grammar(schema_grammar(schema)), random.Random(7)
    further = 0
    for _ in range(300):
        pairs = json.loads(grammar.sample(chance), object_pairs_hook=list)
        assert all((name in ("a", "ab")) == (value is None) for name, value in pairs)
        further += any(value is not None for _, value in pairs)
    assert further > 50


def test_a_reference_beside_properties_adds_to_them() -> None:
    schema = {
        "$ref": "#/$defs/base",
        "properties": {"b": {"type": "null"}},
        "required": ["b"],
        "$defs": {"base": {"properties": {"a": {"type": "null"}}, "required": ["a"]}},
    }
    grammar, chance = Grammar(schema_grammar(schema)), random.Random(9)
    assert {tuple(sorted(json.loads(grammar.sample(chance)))) for _ in range(50)} == {("a", "b")}


def test_branches_share_the_keywords_beside_them() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    grammar, chance = Grammar(schema_grammar(schema)), random.Random(11)
    assert {tuple(json.loads(grammar.sample(chance))) for _ in range(100)} == {("a",), ("b",), ("a", "b")}


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "string", "pattern": 3}, "pattern"),
        ({"type": "integer", "minimum": "3"}, "minimum"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "allows no value"),
        ({"type": "number", "maximum": 10**400}, "maximum"),
        ({"prefixItems": [{}, {}], "minItems": 3}, "prefixItems"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"not": {}}, "'not'"),
        ({"properties": {"a": {"properties": {"b": {"if": {}}}}}}, "'if'"),
        ({"type": "strnig"}, "'strnig'"),
        ({"type": []}, "type"),
        ({"enum": []}, "enum"),
        ({"enum": [1], "type": "string"}, "allows no value"),
        ({"enum": [1], "maxLength": 3}, "'maxLength'"),
        ({"required": ["a"], "additionalProperties": False}, "allows nothing"),
        ({"required": [1]}, "required"),
        ({"type": "string", "minLength": 100_001}, "minLength"),
        ({"type": "integer", "multipleOf": 5}, "multipleOf"),
        ({"type": "number", "multipleOf": 1}, "multipleOf"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "maxItems"),
        ({"type": "array", "maxItems": True}, "maxItems"),
        ({"$ref": "https://example.org/schema"}, "not supported"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "#"}, "refers to itself"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "beside allOf"),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "additionalProperties": False}]}, "affects"),
        (False, "allows nothing"),
        ([], "must be a schema"),
        ({"properties": []}, "properties"),
        ({"enum": ["x" * 70_000]}, "too large"),
        ({"properties": {str(number): {} for number in range(1000)}}, "too large"),
        ({"properties": {"k" * 3000: {}}, "additionalProperties": True}, "too large"),
    ],
)  # fmt: skip
def test_an_unsupported_keyword_is_named_in_the_error(schema: Any, word: str) -> None:
    with pytest.raises(RequestError) as raised:
        schema_grammar(schema)
    assert word in str(raised.value)


def test_a_schema_that_nests_too_deep_is_an_error() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(33):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="too deep"):
        schema_grammar(schema)


def test_references_that_double_the_work_are_limited() -> None:
    level = {f"l{depth}": {"allOf": [{"$ref": f"#/$defs/l{depth + 1}"}] * 2} for depth in range(30)}
    with pytest.raises(RequestError, match="too"):
        schema_grammar({"$ref": "#/$defs/l0", "$defs": {**level, "l30": {"properties": {"a": {}}}}})


def test_annotations_and_formats_that_are_not_regular_change_nothing() -> None:
    plain, annotated = (
        {"type": "string"},
        {"type": "string", "format": "uri", "title": "t", "default": "x", "x-mine": 1},
    )
    assert schema_grammar(plain) == schema_grammar(annotated)


def test_llama_cpp_accepts_the_grammar_of_the_deepest_schema() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(32):
        schema = {"type": "object", "properties": {"a": schema}}
    text = schema_grammar(schema)
    check_grammar(text)
    assert len(text) < MAX_GRAMMAR_BYTES


@pytest.mark.parametrize(
    ("least", "most"),
    [*[(0, 1001), (7, 5000), (600, None), (999, 1000), (2000, 2000)], pytest.param(1, 65_536, marks=pytest.mark.slow)],
)
def test_long_texts_are_counted_in_blocks(least: int, most: int | None) -> None:
    schema = {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most})}
    text = schema_grammar(schema)
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(least)
    for _ in range(20):
        value = json.loads(grammar.sample(chance))
        assert least <= len(value) <= (most or 10**9)


def test_a_length_that_no_answer_reaches_limits_nothing() -> None:
    assert schema_grammar({"type": "string", "maxLength": 10_000_000}) == schema_grammar(
        {"type": "string", "minLength": 0}
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 1, "minimum": 3, "maximum": 5},
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
        {"type": "array", "items": {"type": "null"}, "uniqueItems": False, "maxItems": 2},
        {"type": "string", "nullable": True, "maxLength": 3},
    ],
)
def test_keywords_that_limit_nothing_are_taken(schema: dict[str, Any]) -> None:
    grammar, chance = Grammar(schema_grammar(schema)), random.Random(1)
    for _ in range(20):
        jsonschema.validate(json.loads(grammar.sample(chance)), schema)
