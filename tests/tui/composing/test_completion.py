from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.composing.completion import Offer, Wanted, file_offers, wanted, word_offers

FILES = ["README.md", "app/settings.py", "tests/app/test_settings.py", "tui/app.py", "docs/a long name.txt"]


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("/sys", Wanted("command", "sys", 0)),
        ("/", Wanted("command", "", 0)),
        ("/etc/ho", None),
        ("look /sys", None),
        ("/system be", None),
        ("look at @set", Wanted("file", "set", 8)),
        ("one\n@", Wanted("file", "", 4)),
        ("me@home", None),
        ("", None),
    ],
)
def test_the_word_at_the_cursor_tells_what_is_wanted(before: str, found: Wanted | None) -> None:
    assert wanted(before) == found


def test_commands_that_begin_so_are_offered_in_their_order() -> None:
    words = [("stop", "Stop it"), ("system", "Say how"), ("new", "Begin")]
    assert word_offers("S", words) == [Offer("/stop", "Stop it"), Offer("/system", "Say how")]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("settings", "app/settings.py"),
        ("readme", "README.md"),
        ("tapy", "tui/app.py"),
        ("test_s", "tests/app/test_settings.py"),
    ],
)
def test_the_file_that_fits_best_comes_first(typed: str, first: str) -> None:
    assert file_offers(typed, FILES)[0].text == f"@{first}"


def test_what_fits_nothing_is_offered_nothing() -> None:
    assert file_offers("zzz", FILES) == []


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=30), max_size=30, unique=True))
def test_every_offer_is_a_file_with_those_letters_in_order(typed: str, files: list[str]) -> None:
    for offer in file_offers(typed, files):
        rest = iter(offer.text[1:].lower())
        assert offer.text[1:] in files
        assert all(letter in rest for letter in typed.lower())
