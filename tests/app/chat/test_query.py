from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.search import match_expression

_SPECIAL = st.text(st.sampled_from("ab\"'*^():-+{}, \t\nANDORNOTEé日\x00\ud800"))


@pytest.fixture(scope="module")
def index() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    return connection


@given(typed=_SPECIAL | st.text())
def test_whatever_is_typed_is_an_expression_that_sqlite_takes(index: sqlite3.Connection, typed: str) -> None:
    if expression := match_expression(typed):
        index.execute("SELECT * FROM words WHERE words MATCH ?", (expression,)).fetchall()


@pytest.mark.parametrize(
    ("typed", "expression"),
    [
        ("", ""),
        ("  !? ", ""),
        ("brea", '"brea"*'),
        ("bread ", '"bread"'),
        ("sour brea", '"sour" "brea"*'),
        ('"sour bread"', '"sour bread"'),
        ('"sour brea', '"sour brea"*'),
        ("NOT bread OR NEAR(x)", '"NOT" "bread" "OR" "NEAR(x)"*'),
        ("title:x*", '"title:x*"*'),
    ],
)
def test_words_are_quoted_and_the_last_is_a_beginning(typed: str, expression: str) -> None:
    assert match_expression(typed) == expression


def test_a_very_long_query_is_bounded() -> None:
    assert len(match_expression("a " * 100_000)) < 2_000
