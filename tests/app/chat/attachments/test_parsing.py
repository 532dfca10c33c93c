from __future__ import annotations

import pytest

from app.chat.attachments.parsing import ALL_PAGES, PageChoice, fenced, split_page_choice
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("a.pdf#3", PageChoice(3, 3)),
        ("a.pdf#3-5", PageChoice(3, 5)),
        ("a.pdf#3-", PageChoice(3, None)),
        ("a.pdf#pictures", PageChoice(as_pictures=True)),
        ("a.pdf#3-5,pictures", PageChoice(3, 5, as_pictures=True)),
        ("a.pdf", ALL_PAGES),
    ],
)
def test_pages_follow_a_number_sign(name: str, choice: PageChoice) -> None:
    assert split_page_choice(name) == ("a.pdf", choice)
    assert split_page_choice(f"a.pdf{choice}") == ("a.pdf", choice)


@pytest.mark.parametrize("name", ["notes#draft.md", "#3", "a.pdf#", "a.pdf#3,4", "a.pdf#pictures,pictures,3", "a#-3"])
def test_other_number_signs_belong_to_the_name(name: str) -> None:
    assert split_page_choice(name) == (name, ALL_PAGES)


@pytest.mark.parametrize("name", ["a.pdf#5-3", "a.pdf#0"])
def test_pages_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="names no pages"):
        split_page_choice(name)


@pytest.mark.parametrize(
    ("text", "n_ticks"), [("a", 3), ("`", 3), ("```", 4), ("a``b````c`", 5), ("`" * 200_000, 200_001)]
)
def test_a_block_of_code_has_a_longer_fence_than_any_in_it(text: str, n_ticks: int) -> None:
    fence = "`" * n_ticks
    assert fenced(text, "py") == f"{fence}py\n{text}\n{fence}"
