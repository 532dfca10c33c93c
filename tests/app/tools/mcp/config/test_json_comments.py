"""JSON of editors' settings files, with comments and commas at the end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.mcp.config.json_comments import without_comments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_stays_what_it_is(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert json.loads(without_comments(text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // one\n "b": [1, 2,], /* two\n lines */ }', {"a": 1, "b": [1, 2]}),
        ('{"url": "http://h//p", "c": "/* no */", "d": "a,]"}', {"url": "http://h//p", "c": "/* no */", "d": "a,]"}),
        ('{"a": "\\"// no", // yes\n}', {"a": '"// no'}),
    ],
)
def test_comments_and_last_commas_are_left_out(text: str, value: object) -> None:
    assert json.loads(without_comments(text)) == value


def test_positions_stay() -> None:
    text = '{\n  /* a\n  b */ "x": 1,,\n}'
    plain = without_comments(text)
    assert len(plain) == len(text)
    assert plain.count("\n") == text.count("\n")
