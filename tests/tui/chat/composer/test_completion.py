from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.chat.composer.attachments import files_below
from tui.chat.composer.completion import (
    Completion,
    Offer,
    PartialWord,
    argument_completions,
    command_completions,
    file_completions,
    match_places,
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
    offer = command_completions("S", words)
    assert [(each.text, each.note) for each in offer.best] == [("/stop", "Stop it"), ("/system", "Say how")]


def test_of_all_commands_the_common_ones_come_first_and_all_are_counted() -> None:
    words = [*((f"rare{number}", "") for number in range(30)), ("model", ""), ("new", "")]
    offer = command_completions("", words)
    assert [each.text for each in offer.best][:3] == ["/new", "/model", "/rare0"]
    assert (len(offer.best), offer.n_all) == (8, 32)


def test_arguments_that_begin_so_come_before_those_that_contain_it() -> None:
    names = [("my-qwen", "1 GB"), ("Qwen3-4B", "2 GB"), ("llama", "3 GB")]
    assert argument_completions("qw", names).best == (Completion("Qwen3-4B", "2 GB"), Completion("my-qwen", "1 GB"))
    assert argument_completions("llama", names).best == ()


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("settings", "app/settings/settings.py"),
        ("readme", "README.md"),
        ("tapy", "tui/app.py"),
        ("test_s", "tests/app/settings/test_settings.py"),
        ("ass", "app/settings/settings.py"),
        ("app/", "app/settings/settings.py"),
        ("tasts", "tests/app/settings/test_settings.py"),
    ],
)
def test_the_file_that_fits_best_comes_first(typed: str, first: str) -> None:
    assert file_completions(typed, FILES).best[0].text == f"@{first}"


def test_a_folder_that_is_typed_offers_what_is_in_it_and_not_itself() -> None:
    files = ["docs/", "docs/a.md", "docs/old/"]
    assert {each.text for each in file_completions("docs/", files).best} == {"@docs/a.md", "@docs/old/"}
    assert file_completions("docs", files).best[0].text == "@docs/"


def test_what_fits_nothing_is_offered_nothing() -> None:
    assert file_completions("zzz", FILES) == Offer()


@pytest.mark.slow
@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=30), max_size=30, unique=True))
def test_every_offer_is_a_file_with_those_letters_in_order(typed: str, files: list[str]) -> None:
    for offer in file_completions(typed, files).best:
        rest = iter(offer.text[1:].lower())
        assert offer.text[1:] in files
        assert all(letter in rest for letter in typed.lower())
        assert "".join(offer.text[place] for place in offer.places).lower() == typed.lower()


@pytest.mark.parametrize(
    ("letters", "path", "marked"),
    [
        ("app", "app/my_app.py", "app/my_[app].py"),
        ("tapy", "tui/app.py", "[t]ui/[ap]p.p[y]"),
        ("mv", "src/MessageView.py", "src/[M]essage[V]iew.py"),
        ("src/", "src/a/", "[src/]a/"),
    ],
)
def test_the_letters_that_match_are_marked(letters: str, path: str, marked: str) -> None:
    places = set(match_places(letters, path))
    shown = "".join(f"[{letter}]" if at in places else letter for at, letter in enumerate(path)).replace("][", "")
    assert shown == marked


def test_recent_files_come_first_among_equals_and_without_a_letter() -> None:
    files = [f"src/part{number}.py" for number in range(20)]
    assert file_completions("", files, ["src/part9.py"]).best[0].text == "@src/part9.py"
    assert file_completions("part", files, ["src/part9.py"]).best[0].text == "@src/part9.py"
    assert file_completions("part", files).n_all == 20


def test_fifty_thousand_files_are_searched_in_little_time() -> None:
    files = [f"folder{number % 100}/deep/part_{number}.py" for number in range(50_000)]
    begun_s = time.process_time()
    offer = file_completions("fdp49", files)
    assert time.process_time() - begun_s < 2.0
    assert (len(offer.best), offer.n_all > 100) == (8, True)


def test_folders_are_listed_with_their_slash(tmp_path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "inner" / "a.py").touch()
    (tmp_path / ".hidden").mkdir()
    assert files_below(tmp_path, has_folders=True) == ["src/", "src/inner/", "src/inner/a.py"]
    assert files_below(tmp_path) == ["src/inner/a.py"]
