from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.schema_shape import malformed_part
from tests.app.malformed_schemas import JSON, schemas

MALFORMED: list[tuple[Any, str]] = [
    ("a", "# must be a schema: an object, true or false"),
    ({"properties": "a"}, "#/properties must be an object with a schema for each name"),
    ({"properties": {"a/b": 1}}, "#/properties/a~1b must be a schema: an object, true or false"),
    ({"allOf": [{"properties": "a"}]}, "#/allOf/0/properties must be an object with a schema for each name"),
    ({"anyOf": {}}, "#/anyOf must be a list of schemas"),
    ({"required": [["a", 1]]}, "#/required must be a list of names"),
    ({"items": 1}, "#/items must be a schema or a list of schemas"),
    ({"items": [{"pattern": 1}]}, "#/items/0/pattern must be a string"),
    ({"additionalProperties": []}, "#/additionalProperties must be a schema"),
    ({"$defs": {"a": {"minLength": -1}}}, "#/$defs/a/minLength must be a count from 0 on"),
    ({"minimum": "1"}, "#/minimum must be a number"),
    ({"exclusiveMinimum": []}, "#/exclusiveMinimum must be a number"),
    ({"maximum": float("inf")}, "#/maximum must be a number"),
    ({"type": [1]}, "#/type must be a name or a list of names"),
    ({"enum": "a"}, "#/enum must be a list"),
]


@pytest.mark.parametrize(("schema", "fault"), MALFORMED)
def test_a_malformed_part_is_named_by_its_pointer(schema: Any, fault: str) -> None:
    assert malformed_part(schema) == fault


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"properties": {"a": True, "b": {"required": True, "exclusiveMinimum": True}}, "required": None},
        {"items": [], "minItems": 2.0, "type": "anything", "unknown": object, "minimum": -(10**400)},
    ],
)
def test_what_clients_write_is_no_malformed_part(schema: Any) -> None:
    assert malformed_part(schema) == ""


@pytest.mark.slow
def test_a_schema_deeper_than_the_stack_is_looked_through() -> None:
    schema: Any = {"properties": 1}
    for _ in range(100_000):
        schema = {"items": schema}

    assert malformed_part(schema).endswith("/properties must be an object with a schema for each name")


@given(schemas() | JSON | st.just(float("nan")))
def test_any_value_at_all_is_a_schema_or_has_a_malformed_part(value: Any) -> None:
    assert malformed_part(value) == "" or malformed_part(value).startswith("#")
