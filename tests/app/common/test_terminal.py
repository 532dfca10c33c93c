"""Names and commands in lines that a person decides by."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.terminal import printable_line, quoted_command, quoted_name


@pytest.mark.parametrize("name", ["notes.md", "my notes.md", "Übersicht.md", "表.txt", "it's", 'a"b', "/home/me/x"])
def test_a_name_that_shows_whole_is_shown_as_it_is(name: str) -> None:
    assert quoted_name(name) == name


@given(st.text())
def test_names_are_told_apart_and_stay_in_their_line(name: str) -> None:
    shown = quoted_name(name)
    assert "\n" not in shown
    assert shown.isprintable()
    assert (json.loads(shown) if shown.startswith('"') else shown) == name


@given(st.lists(st.text(), min_size=1))
def test_a_command_is_one_line_in_which_nothing_is_left_out(argv: list[str]) -> None:
    shown = quoted_command(argv)
    assert shown.isprintable()
    assert printable_line(shown).replace(" ", "") == shown.replace(" ", "")


def test_arguments_are_shown_as_a_shell_would_take_them() -> None:
    assert quoted_command(["echo", "a b", "$HOME", "c\nd", "\u202e"]) == "echo 'a b' '$HOME' \"c\\nd\" \"\\u202e\""
