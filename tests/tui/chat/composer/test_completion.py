from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.chat.composer.completion import (
    Completion,
    PartialWord,
    argument_completions,
    command_completions,
    file_completions,
    partial_word,
)

FILES = [
    "README.md",
    "app/settings/settings.py",
    "tests/app/settings/test_settings.py",
    "tui/app.py",
    "docs/a long name.txt",
]


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("/sys", PartialWord("command", "sys")),
        ("/", PartialWord("command", "")),
        ("/etc/ho", None),
        ("look /sys", None),
        ("/system be", PartialWord("argument", "be", command="system")),
        ("/prompt code re", PartialWord("argument", "code re", command="prompt")),
        ("/prompt @no", PartialWord("file", "no")),
        ("look at @set", PartialWord("file", "set")),
        ("one\n@", PartialWord("file", "")),
        ("me@home", None),
        ("", None),
    ],
)
def test_the_word_at_the_cursor_selects_the_completions(before: str, found: PartialWord | None) -> None:
    assert partial_word(before) == found


def test_commands_that_begin_so_are_offered_in_their_order() -> None:
    words = [("stop", "Stop it"), ("system", "Say how"), ("new", "Begin")]
    assert command_completions("S", words) == [Completion("/stop", "Stop it"), Completion("/system", "Say how")]


def test_arguments_that_begin_so_come_before_those_that_contain_it() -> None:
    names = [("my-qwen", "1 GB"), ("Qwen3-4B", "2 GB"), ("llama", "3 GB")]
    assert argument_completions("qw", names) == [Completion("Qwen3-4B", "2 GB"), Completion("my-qwen", "1 GB")]
    assert argument_completions("llama", names) == []


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("settings", "app/settings/settings.py"),
        ("readme", "README.md"),
        ("tapy", "tui/app.py"),
        ("test_s", "tests/app/settings/test_settings.py"),
    ],
)
def test_the_file_that_fits_best_comes_first(typed: str, first: str) -> None:
    assert file_completions(typed, FILES)[0].text == f"@{first}"


def test_what_fits_nothing_is_offered_nothing() -> None:
    assert file_completions("zzz", FILES) == []


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=30), max_size=30, unique=True))
def test_every_offer_is_a_file_with_those_letters_in_order(typed: str, files: list[str]) -> None:
    for offer in file_completions(typed, files):
        rest = iter(offer.text[1:].lower())
        assert offer.text[1:] in files
        assert all(letter in rest for letter in typed.lower())
