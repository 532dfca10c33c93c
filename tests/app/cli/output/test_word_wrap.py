"""A text that streams to a terminal is broken between words only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.output.word_wrap import WordWrap

TEXT = "You can use it in the app, and then a_word_of_twenty_chars follows; 中文 too. Again.\n\n- one and two and three"
CODE = "So:\n```python\nx = 'a very long row of code that no narrow terminal can show'\n```\nThat is all."


def wrapped(text: str, width: int, size: int = 3) -> str:
    wrap = WordWrap()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return "".join(wrap.feed(piece, width) for piece in pieces) + wrap.flush()


@pytest.mark.parametrize("size", [1, 2, 7, 500])
@pytest.mark.parametrize("width", [24, 30, 41, 80])
def test_rows_end_between_words(width, size):
    shown = wrapped(TEXT, width, size)
    assert shown.split() == TEXT.split()
    assert all(len(row) <= width for row in shown.split("\n"))


def test_the_pieces_make_no_difference():
    assert len({wrapped(TEXT, 30, size) for size in range(1, 40)}) == 1


def test_code_and_tables_stay_as_they_are():
    assert "x = 'a very long row of code that no narrow terminal can show'" in wrapped(CODE, 30)
    assert wrapped(CODE, 30).endswith("```\nThat is all.")
    table = "| a | b |\n|---|---|\n| one long cell of a table | another one |\n"
    assert wrapped(table, 30) == table


def test_a_word_in_the_middle_of_a_row_is_shown_as_it_comes():
    wrap = WordWrap()
    assert wrap.feed("Hel", 80) + wrap.feed("lo ", 80) + wrap.feed("w", 80) == "Hello w"


def test_a_word_at_the_end_of_a_row_waits_until_it_ends():
    wrap = WordWrap()
    assert wrap.feed("x" * 70 + " i", 80).endswith("x")
    assert wrap.feed("n the", 80) == " in"
    assert wrap.flush() == " the"


@given(st.text(alphabet=st.sampled_from("ab \n\t中`|-"), max_size=200), st.integers(1, 40), st.integers(1, 9))
def test_nothing_but_spaces_is_lost(text, width, size):
    assert wrapped(text, width, size).split() == text.split()
