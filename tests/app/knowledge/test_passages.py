from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.knowledge.passages import MAX_PASSAGE_BYTES, Passage, split_passages

_LINES = st.text(st.sampled_from("ab c.ä字#=-\t[Page1]\n\u2028"), max_size=3_000)


@given(_LINES, st.booleans(), st.booleans())
@example("x" * 5_000, False, False)
@example("字" * 2_000, False, False)
@example("# \n" * 500, False, True)
def test_passages_are_bounded_slices_in_order_that_leave_no_word_out(
    text: str, has_pages: bool, is_markdown: bool
) -> None:
    covered, last_begin = [False] * len(text), -1
    for passage in split_passages(text, has_pages=has_pages, is_markdown=is_markdown):
        assert text[passage.begin : passage.end] == passage.text
        assert 0 < len(passage.text.encode()) <= MAX_PASSAGE_BYTES
        assert passage.begin > last_begin
        last_begin = passage.begin
        covered[passage.begin : passage.end] = [True] * len(passage.text)
    lost = "".join(character for character, is_covered in zip(text, covered, strict=True) if not is_covered)
    if not has_pages:
        assert not lost.strip()


def test_a_section_begins_a_passage_and_knows_the_headings_above_it() -> None:
    body = "Word after word. " * 20
    text = f"# Soup\n\n{body}\n\n## Broth\n\n{body}\n\n# Bread\n\n{body}"
    passages = list(split_passages(text, is_markdown=True))
    assert [passage.heading for passage in passages] == ["Soup", "Soup > Broth", "Bread"]
    assert passages[1].text.startswith("## Broth")


def test_underlined_titles_are_headings_in_the_order_of_their_signs() -> None:
    body = "Word after word. " * 20
    text = f"====\nSoup\n====\n\n{body}\n\nBroth\n-----\n{body}\n\nBread\n=====\n\n{body}"
    headings = [passage.heading for passage in split_passages(text)]
    assert headings == ["Soup", "Soup > Broth", "Soup > Broth > Bread"]


def test_a_heading_has_its_words_alone_and_a_chain_the_innermost_that_fit() -> None:
    body = "Word after word. " * 20
    text = f"# {'Long ' * 19}\n\n## {'Soup ' * 19}\n\n### [Broth](#broth)[#](#broth)\n\n{body}"
    (passage,) = split_passages(text, is_markdown=True)
    (last,) = (
        each for each in split_passages(f"{text}\n\n#### Salt ¶\n\n{body}", is_markdown=True) if "Salt" in each.text
    )
    assert passage.heading == ("Long " * 19).strip()
    assert last.heading == f"{('Soup ' * 19).strip()} > Broth > Salt"


@pytest.mark.parametrize(
    "text", ["# a comment of a program\nx = 1", "---\n\nrule", "one\ntwo\n===", "| a |\n| --- |", "====\n\n----"]
)
def test_what_only_looks_like_a_heading_is_text(text: str) -> None:
    assert {passage.heading for passage in split_passages(text)} == {""}


def test_a_short_section_goes_on_with_the_next_one() -> None:
    text = "# One\n\nA line.\n\n# Two\n\nAnother line."
    assert list(split_passages(text, is_markdown=True)) == [Passage(text, 0, len(text), "One")]


def test_a_passage_has_the_page_that_it_is_on() -> None:
    text = "[Page 1]\n\nSoup.\n\n[Page 2]\n\n[Page 3]\n\nBread.\n\nRain."
    assert [(passage.page, passage.text) for passage in split_passages(text, has_pages=True)] == [
        (1, "Soup."),
        (3, "Bread.\n\nRain."),
    ]
    assert [passage.page for passage in split_passages(text)] == [None]


def test_a_long_paragraph_is_cut_after_sentences_and_its_pieces_overlap() -> None:
    sentences = " ".join(f"Sentence number {number} says nothing at all." for number in range(60))
    passages = list(split_passages(sentences))
    assert len(passages) > 2
    for before, after in itertools.pairwise(passages):
        assert before.text.endswith(".")
        assert 0 < before.end - after.begin <= 120
        assert sentences[after.begin - 1] == " "
