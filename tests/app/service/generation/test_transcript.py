"""Texts of overlapping windows joined to one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.service.generation.transcript import N_OVERLAPPING, Transcript, join, separator

WORDS = st.lists(st.text("abcdeé'", min_size=1, max_size=4), max_size=60)
TEXTS = st.lists(st.tuples(st.text("ab ,.\n你", max_size=80), st.booleans()), max_size=5)


def transcribed(windows: list[tuple[str, bool]], n_characters: int = 1_000) -> tuple[Transcript, list[str]]:
    """The transcript of windows (text, is cut), which come in pieces of `n_characters`, and what each call returned."""
    transcript, deltas = Transcript(), list[str]()
    for text, is_cut in windows:
        transcript.begin_window(is_cut=is_cut)
        deltas += [transcript.push(text[begin : begin + n_characters]) for begin in range(0, len(text), n_characters)]
        deltas.append(transcript.end_window())
    deltas.append(transcript.end())
    return transcript, deltas


@pytest.mark.parametrize(
    ("tail", "head", "joined"),
    [
        ("we went to the shore and", "the shore and swam", ("we went to the shore and", " swam")),
        ("went to the Shore, an", "a shore and swam", ("went to the Shore, an", "a shore and swam")),
        ("he saw the big dog ru", "her the big dog runs", ("he saw the big dog", " runs")),
        ("and then", "Then he left", ("and then", " he left")),
        ("the cat", "sat on the mat", ("the cat", "sat on the mat")),
        ("", "a b", ("", "a b")),
        ("a b", "", ("a b", "")),
        ("今天天气很好", "天气很好我们去", ("今天天气很好", "我们去")),
    ],
)
def test_two_windows_are_joined_in_the_longest_run_of_both(tail: str, head: str, joined: tuple[str, str]) -> None:
    assert join(tail, head) == joined


@settings(max_examples=30)
@given(st.integers(2, 60), st.integers(2, N_OVERLAPPING), st.integers(1, 9))
def test_a_text_that_two_windows_heard_is_itself_again(n_first: int, n_common: int, n_characters: int) -> None:
    words = [f"w{index}" for index in range(n_first + 30)]
    n_common = min(n_common, n_first)
    windows = [(" ".join(words[:n_first]), True), (" ".join(words[n_first - n_common :]), False)]
    transcript, _ = transcribed(windows, n_characters)
    assert transcript.text == " ".join(words)
    assert transcript.part(0) == " ".join(words[:n_first])
    assert transcript.part(1) == " ".join(words[n_first:])


@settings(max_examples=50)
@given(TEXTS, st.integers(1, 9))
def test_the_text_is_what_was_returned_and_does_not_depend_on_the_pieces(
    windows: list[tuple[str, bool]], n_characters: int
) -> None:
    whole, _ = transcribed(windows)
    pieces, deltas = transcribed(windows, n_characters)
    assert "".join(deltas) == pieces.text == whole.text
    parts = [whole.part(index) for index in range(len(windows))]
    assert parts == [pieces.part(index) for index in range(len(windows))]
    joined = ""
    for part in parts:
        assert part == part.strip()
        joined += separator(joined, part) + part
    assert joined == whole.text


@settings(max_examples=30)
@given(st.lists(WORDS, max_size=4))
def test_windows_that_meet_in_a_pause_lose_nothing(windows: list[list[str]]) -> None:
    transcript, _ = transcribed([(" " + "\n".join(words) + " ", False) for words in windows], 3)
    assert transcript.text == " ".join("\n".join(words) for words in windows if words)


@given(WORDS, WORDS)
def test_at_most_the_words_around_a_cut_are_dropped(first: list[str], second: list[str]) -> None:
    transcript, _ = transcribed([(" ".join(first), True), (" ".join(second), False)])
    kept = transcript.text.split()
    n_safe, n_behind = max(0, len(first) - N_OVERLAPPING), max(0, len(second) - N_OVERLAPPING)
    assert kept[:n_safe] == first[:n_safe]
    assert kept[len(kept) - n_behind :] == second[len(second) - n_behind :]
    assert not re.search(r"\s\s", transcript.text)


def test_what_is_certain_of_a_window_comes_before_its_end() -> None:
    transcript = Transcript()
    transcript.begin_window(is_cut=False)
    assert transcript.push(" Hello ") == "Hello"
    assert transcript.push("there. ") == " there."
    transcript.begin_window(is_cut=True)
    words = [f"w{index}" for index in range(N_OVERLAPPING + 2)]
    assert transcript.push(" ".join(words)) == " w0 w1"
