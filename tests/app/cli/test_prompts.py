from __future__ import annotations

import pytest

from app.cli.prompts import combined, multiline
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    ("prompt", "piped", "question"),
    [
        ("Explain:", "code\n", "Explain:\n\ncode"),
        (None, "code\nmore\n", "code\nmore"),
        ("Hello", "", "Hello"),
        ("Hello", "\n", "Hello"),
        (None, " \n", ""),
        (None, "  indented\n", "  indented"),
    ],
)
def test_piped_text_follows_the_prompt(prompt: str | None, piped: str, question: str) -> None:
    assert combined(prompt, piped) == question


def test_an_argument_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="encoding"):
        combined("caf\udce9", "")


@pytest.mark.parametrize(
    ("lines", "question"),
    [
        (["one line"], "one line"),
        (['"""', "two", "lines", '"""'], "two\nlines"),
        (['"""two', 'lines"""'], "two\nlines"),
        (['"""one line"""'], "one line"),
        (['"""', "", "kept", "", '"""'], "kept"),
    ],
)
def test_three_quotes_begin_and_end_several_lines(lines: list[str], question: str) -> None:
    rest = iter(lines[1:])
    assert multiline(lines[0], lambda: next(rest)) == question
    assert list(rest) == []
