from __future__ import annotations

import pytest

from app.sound.spoken_text import spoken_text


@pytest.mark.parametrize(
    ("markdown", "spoken"),
    [
        ("# A *title*\n\nwith `code` and\na [link](http://x.org/y).", "A title\n\nwith code and a link."),
        ("- one\n- two\n\n```sh\nrm -r x\n```\nEnd.", "one\n\ntwo\n\nEnd."),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a\n\nb\n\n1\n\n2"),
        ("```\nonly code\n```", ""),
    ],
)
def test_words_are_read_aloud_and_neither_marks_nor_code(markdown: str, spoken: str) -> None:
    assert spoken_text(markdown) == spoken
