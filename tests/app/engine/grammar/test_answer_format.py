"""Texts of a grammar have the form that it was made of."""

from __future__ import annotations

import random
import re

import pytest

from app.engine.grammar.answer_format import MAX_CHOICES, AnswerFormat, ChoiceFormat, PatternFormat
from app.engine.grammar.gbnf import GbnfRules
from app.protocol.errors import RequestError
from tests.app.gbnf_texts import Grammar

EXPRESSIONS = (
    r"\w+@\w+\.com",
    r"^[a-z]{2,4}$",
    r"(yes|no)( [0-9]+)?",
    r"\+?[0-9]{1,3}-\d{4}",
    r"^a|b$",
    "Zürich|東京",
    r"[^\n]{1,20}",
    "",
)


def samples(form: AnswerFormat) -> list[str]:
    """Return texts of the form alone, and behind another rule."""
    rules = GbnfRules()
    nested = rules.text(f'"> " {form.rule(rules)}')
    chance = random.Random(1)
    alone = [Grammar(form.grammar).sample(chance) for _ in range(20)]
    return alone + [Grammar(nested).sample(chance).removeprefix("> ") for _ in range(20)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_text_matches_the_whole_expression(expression: str) -> None:
    assert [text for text in samples(PatternFormat(expression)) if not re.fullmatch(expression, text)] == []


def test_a_text_is_one_of_the_choices() -> None:
    choices = ('say "hi"', "no\\yes", "two\nlines", "ä")
    assert set(samples(ChoiceFormat(choices))) == set(choices)


@pytest.mark.parametrize("expression", ["(a", r"(?=a)a", r"(a)\1", "a{1,", "a" * 3000])
def test_an_expression_that_no_grammar_has_is_refused_by_its_name(expression: str) -> None:
    with pytest.raises(RequestError, match="regular expression"):
        PatternFormat(expression)


@pytest.mark.parametrize("choices", [(), ("",), tuple(map(str, range(MAX_CHOICES + 1)))])
def test_a_choice_has_texts_and_not_too_many(choices: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="choices"):
        ChoiceFormat(choices)
