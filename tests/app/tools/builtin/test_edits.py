"""Replacing one exact text: exactly once, everything else untouched, line endings kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.builtin.edits import EditError, edited
from app.tools.builtin.text_form import TextForm

LF, CRLF = TextForm(), TextForm(newline="\r\n")


def test_a_text_is_replaced_and_the_rest_stays() -> None:
    assert edited("a\nb\nc\n", "b\n", "B\nBB\n", LF) == "a\nB\nBB\nc\n"


def test_the_new_text_takes_the_line_endings_of_what_it_replaces() -> None:
    assert edited("a\r\nb\r\nc\n", "a\nb\n", "x\ny\nz\n", LF) == "x\r\ny\r\nz\r\nc\n"
    assert edited("a\r\nb\r\nc\n", "c\n", "x\ny\n", CRLF) == "a\r\nb\r\nx\ny\n"
    assert edited("a\r\nb\r\n", "b", "x\ny", CRLF) == "a\r\nx\r\ny\r\n"


def test_a_text_that_is_missing_or_there_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(EditError, match="not in the file"):
        edited("a\n", "b", "c", LF)
    with pytest.raises(EditError, match="at lines 1, 3"):
        edited("x\ny\nx\n", "x", "z", LF)
    with pytest.raises(EditError, match="1, 1, 1, 1, 1 and more"):
        edited("a" * 100, "a", "b", LF)


def test_a_text_that_overlaps_itself_is_there_twice() -> None:
    with pytest.raises(EditError, match="more than once"):
        edited("aaa", "aa", "b", LF)


def test_a_text_that_differs_by_spaces_only_is_hinted_at() -> None:
    with pytest.raises(EditError, match="Line 2 differs only by spaces"):
        edited("a\n    b = 1\nc\n", "b = 1\n c", "x", LF)


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a"), ("a\r\nb", "a\nb")])
def test_an_edit_that_does_nothing_is_refused(old: str, new: str) -> None:
    with pytest.raises(EditError):
        edited("a\r\nb", old, new, LF)


_TEXT = st.text(alphabet="ab \n\té", max_size=12)
_PIECES = st.lists(_TEXT | st.just("\r\n"), max_size=8).map("".join)


@given(_PIECES, _PIECES.filter(bool), _PIECES, st.sampled_from([LF, CRLF]))
def test_what_is_not_replaced_stays_byte_for_byte(text: str, old: str, new: str, form: TextForm) -> None:
    plain, plain_old, plain_new = (each.replace("\r\n", "\n") for each in (text, old, new))
    n_found = sum(plain.startswith(plain_old, place) for place in range(len(plain)))
    if n_found != 1 or plain_old == plain_new:
        with pytest.raises(EditError):
            edited(text, old, new, form)
        return
    found = edited(text, old, new, form)
    place = plain.find(plain_old)
    assert found.replace("\r\n", "\n") == plain[:place] + plain_new + plain[place + len(plain_old) :]
    n_crlf_before = plain[:place].count("\n") and text.replace("\r\n", "\0").replace("\n", "N")
    assert found.startswith(_original(text, place)) or not n_crlf_before
    assert found.endswith(text[len(_original(text, place + len(plain_old))) :])


def _original(text: str, n_characters: int) -> str:
    """Return the beginning of `text` that has `n_characters`, a line ending counted as one."""
    marked = text.replace("\r\n", "\0")[:n_characters]
    return marked.replace("\0", "\r\n")


@given(_PIECES.filter(lambda text: "b" in text))
def test_an_edit_and_its_reverse_give_the_same_bytes_again(text: str) -> None:
    with_mark = text.replace("b", "Z", 1).replace("b", "a")
    there = edited(with_mark, "Z", "Y", LF)
    assert edited(there, "Y", "Z", LF) == with_mark
