from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.schema_example import example_arguments

_WORDS = st.sampled_from(["required", "properties", "type", "enum", "examples", "string", "a"])


@pytest.mark.parametrize(
    ("described", "value"),
    [
        ({"type": "string"}, "..."),
        ({"type": "integer"}, 1),
        ({"type": "array"}, ["..."]),
        ({"type": ["string", "null"]}, "..."),
        ({"type": "string", "examples": ["Oslo"]}, "Oslo"),
        ({"type": "string", "enum": ["metric", "imperial"]}, "metric"),
        ({"type": "array", "examples": [["python3", "test.py"]]}, ["python3", "test.py"]),
        ({"type": "string", "examples": ["x" * 5000]}, "..."),
        ({"type": "object", "examples": [{"a": 1}]}, {}),
        ({"type": "number", "enum": [float("nan")]}, 1),
        (True, "..."),
    ],
)
def test_an_argument_is_the_schema_s_own_example_or_one_of_its_type(described: object, value: object) -> None:
    schema = {"properties": {"a": described, "b": {"type": "string"}}, "required": ["a"]}
    assert example_arguments(schema) == {"a": value}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | _WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
        max_leaves=20,
    )
)
def test_any_schema_has_a_small_example_that_is_json(schema: object) -> None:
    assert len(json.dumps(example_arguments(schema), allow_nan=False)) < 2000
