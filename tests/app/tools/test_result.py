"""What a tool returned, made safe and short: nothing of a hostile output reaches a terminal or floods a context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.terminal import printable
from app.tools.tool import MAX_CHARACTERS, bounded, characters_for, cleaned, decoded


def test_a_short_output_is_kept_whole() -> None:
    assert bounded("one\ttwo\nthrée 三\n", 100) == "one\ttwo\nthrée 三\n"


def test_of_a_long_output_head_and_tail_are_kept_and_it_says_how_much_is_not() -> None:
    text = bounded("a" * 1000 + "b" * 1000, 300)
    assert text == "a" * 200 + "\n[1,700 characters were left out here]\n" + "b" * 100


def test_fifty_megabytes_are_bounded() -> None:
    text = bounded("line of a log\n" * (50_000_000 // 14))
    assert len(text) < MAX_CHARACTERS + 100
    assert "characters were left out here" in text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;aGVsbG8=\x07copied", "copied"),
        ("\x9b31mred", "31mred"),
        ("a\u202egnp.exe", "agnp.exe"),
        ("10%\r100%\r\nend\x00\x07\x08", "10%\n100%\nend"),
        ("half \x1b[", "half ["),
        ("\ud800lone", "lone"),
    ],
)
def test_terminal_sequences_and_controls_are_dropped(hostile: str, shown: str) -> None:
    assert cleaned(hostile) == shown


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decoded(b"caf\xc3\xa9 \xff\xfe") == "café \ufffd\ufffd"


@given(st.text(), st.integers(10, 50))
def test_whatever_comes_the_text_is_printable_and_bounded(text: str, most: int) -> None:
    found = bounded(text, most)
    assert found == printable(found)
    assert len(found) <= most + len(f"\n[{len(text):,} characters were left out here]\n")


def test_a_result_may_take_a_quarter_of_a_context_within_limits() -> None:
    assert characters_for(8192) == 6144
    assert characters_for(1024) == 2000
    assert characters_for(1 << 20) == MAX_CHARACTERS
