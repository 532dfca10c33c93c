"""Figures in people's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.design.words import (
    counted,
    cut_at_word,
    day_heading,
    duration,
    model_label,
    relative_time,
    short_count,
    side_by_side,
    speed_words,
    wrapped,
)

NOW = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("then", "words", "heading"),
    [
        (NOW + timedelta(hours=2), "now", "Today"),
        (NOW - timedelta(seconds=59), "now", "Today"),
        (NOW - timedelta(minutes=2), "2 min", "Today"),
        (NOW - timedelta(hours=3), "3 h", "Today"),
        (NOW - timedelta(hours=10), "yesterday", "Yesterday"),
        (NOW - timedelta(days=2), "Mon", "This week"),
        (NOW - timedelta(days=7), "11 Nov", "November"),
        (NOW - timedelta(days=40), "9 Oct", "October"),
        (NOW - timedelta(days=400), "14 Oct 2025", "2025"),
    ],
)
def test_moment_is_told_as_people_tell_it(then: datetime, words: str, heading: str) -> None:
    assert (relative_time(then, now=NOW), day_heading(then, NOW)) == (words, heading)


def test_days_begin_at_midnight_where_the_reader_is() -> None:
    there = timezone(timedelta(hours=-10))  # 23:30 of the day before
    assert relative_time(datetime(2026, 11, 17, 11, 0, tzinfo=UTC), NOW.astimezone(there)) == "22 h"


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (2100, "2.1k"),
        (2048, "2k"),
        (8192, "8k"),
        (14_350, "14k"),
        (131_072, "128k"),
    ],
)
def test_count_is_short(n: int, words: str) -> None:
    assert short_count(n) == words


@pytest.mark.parametrize(
    ("tps", "words"),
    [
        (0.74, "0.7 tokens a second"),
        (1.0, "1 token a second"),
        (2.0, "2 tokens a second"),
        (12.4, "12 tokens a second"),
    ],
)
def test_speed_is_a_sentence(tps: float, words: str) -> None:
    assert speed_words(tps) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (45, "45 s"), (200, "3 min"), (9000, "2.5 h"), (200_000, "2 days")]
)
def test_duration_has_one_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_one_has_no_plural() -> None:
    assert (counted(1, "line"), counted(0, "line"), counted(1200, "chat")) == ("1 line", "0 lines", "1,200 chats")


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Mn", "Me", "Cf"]), min_size=1),
    st.integers(4, 60),
)
def test_label_of_a_model_never_exceeds_its_room(name: str, n_cells: int) -> None:
    assert cell_len(model_label(name, n_cells)) <= n_cells


def test_label_keeps_the_size_and_the_type() -> None:
    assert model_label("unsloth-Qwen3-Coder-30B-A3B-Instruct-Q4_K_M", 24) == "unsloth-Qwen3…uct-Q4_K_M"
    assert model_label("SmolLM2-135M", 24) == "SmolLM2-135M"


@pytest.mark.parametrize(
    ("n_cells", "line"),
    [
        (40, "Regenerate the last answer, or reconnect"),
        (39, "Regenerate the last answer, or…"),
        (28, "Regenerate the last answer…"),
        (27, "Regenerate the last answer…"),
        (26, "Regenerate the last…"),
        (8, "Regener…"),
    ],
)
def test_a_sentence_is_cut_behind_a_word(n_cells: int, line: str) -> None:
    assert cut_at_word("Regenerate the last answer, or reconnect", n_cells) == line


@given(st.text("ab 語é,", min_size=1).map(str.strip), st.integers(2, 30))
def test_a_cut_sentence_fits(text: str, n_cells: int) -> None:
    assert cell_len(cut_at_word(text, n_cells)) <= n_cells


@given(st.text(st.sampled_from("ab 漢"), max_size=60), st.integers(2, 30))
def test_a_wrapped_line_loses_nothing_but_blanks_and_fits(text: str, n_cells: int):
    rows = wrapped(text, n_cells)
    assert all(cell_len(row) <= n_cells for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")
    assert rows


def test_a_line_is_wrapped_between_words_below_its_beginning():
    assert wrapped("  Name: your full, legal name", 16) == ["  Name: your", "  full, legal", "  name"]
    assert wrapped("a trigger-elicitation-request", 12) == ["a", "trigger-elic", "itation-requ", "est"]


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 40), st.integers(0, 3))
def test_side_by_side_are_as_many_as_have_room(widths: list[int], n_cells: int, gap: int):
    rows = side_by_side(widths, n_cells, gap)
    assert [index for row in rows for index in row] == list(range(len(widths)))
    used = [sum(widths[index] for index in row) + gap * (len(row) - 1) for row in rows]
    assert all(n <= n_cells or len(row) == 1 for n, row in zip(used, rows, strict=True))
    assert all(n + gap + widths[row[0]] > n_cells for n, row in zip(used, rows[1:], strict=False))
