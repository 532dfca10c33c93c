from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import Attachment
from tui.chat.composer.attachments import compose_prompt, is_long, pasted


def test_a_paste_is_long_by_its_letters_or_its_lines() -> None:
    assert not is_long("x" * 1000)
    assert is_long("x" * 1001)
    assert not is_long("\n" * 11)
    assert is_long("\n" * 12)


def test_pasted_texts_have_names_of_their_own() -> None:
    first = pasted("a", [])
    second = pasted("b", [first])
    assert (first.name, second.name, pasted("c", [second]).name) == ("pasted 1", "pasted 2", "pasted 1")


def test_the_model_reads_the_texts_first() -> None:
    assert (
        compose_prompt("What is it?", [Attachment("notes.md", "Soup.\n")])
        == "notes.md:\n```\nSoup.\n```\n\nWhat is it?"
    )
    assert compose_prompt("Alone", []) == "Alone"


@given(st.text(alphabet="`a\n", max_size=40))
def test_no_text_ends_its_own_fence(content: str) -> None:
    lines = compose_prompt("q", [Attachment("n", content)]).split("\n")
    fence = lines[1]
    assert lines.count(fence) == 2
    assert fence not in content
