from __future__ import annotations

import random
import re
from typing import Any

import pytest

from app.engine.grammar.gbnf import GbnfRules, check_grammar
from app.protocol.errors import RequestError
from app.service.tools.argument_forms import raw_text
from tests.app.gbnf_texts import Grammar

TAGS = ["</parameter>", "]<]minimax[>[</a>", '<|"|>', "<escape>", "<|close|>argument<|sep|>"]


def texts(schema: dict[str, Any], tag: str, before: str = "", n: int = 60) -> list[str]:
    """Return random texts of `schema`, each without the tag that it ends with."""
    rules = GbnfRules()
    grammar = rules.text(raw_text(schema, tag, rules, before))
    check_grammar(grammar)
    reader, chance, found = Grammar(grammar), random.Random(tag), []
    for _ in range(n):
        text = reader.sample(chance)
        assert text.index(tag) == len(text) - len(tag)
        assert text.endswith(before + tag)
        found.append(text.removesuffix(before + tag))
    return found


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("before", ["", "\n"])
@pytest.mark.parametrize(
    ("least", "most"),
    [*[(0, 5), (3, 3), (1, 40), (30, 70), (2000, None), (1500, 1600)], pytest.param(0, 65_536, marks=pytest.mark.slow)],
)
def test_a_text_has_a_length_within_its_limits(tag: str, before: str, least: int, most: int | None) -> None:
    schema = {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most})}
    for text in texts(schema, tag, before, n=12 if least < 1000 else 3):
        assert least <= len(text) <= (most or 10**9)


@pytest.mark.parametrize("tag", TAGS)
def test_a_text_may_have_what_its_tag_begins_with(tag: str) -> None:
    found = texts({"type": "string", "maxLength": 12}, tag, n=400)
    assert any(tag[0] in text for text in found) or tag[0] not in 'abcdeg09 .,:{}[]-"'


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("pattern", ["^[a-z]{2,4}$", "^(a|b)+-\\d$", "c[^x]", "^.{3}$"])
def test_a_text_matches_its_pattern(tag: str, pattern: str) -> None:
    for text in texts({"type": "string", "pattern": pattern}, tag):
        assert re.search(pattern, text)
        assert tag[0] not in text


def test_a_text_is_one_of_a_choice() -> None:
    assert set(texts({"enum": ["a b", "c\n", '"']}, TAGS[0])) == {"a b", "c\n", '"'}
    assert set(texts({"const": "x"}, TAGS[0])) == {"x"}
    either = {"anyOf": [{"enum": ["a", "b"]}, {"type": "string", "pattern": "^[0-9]$"}]}
    assert all(re.fullmatch("[ab0-9]", text) for text in texts(either, TAGS[0]))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "not": {}},
        {"enum": ["a</parameter>"]},
        {"enum": [1]},
        {"type": "string", "pattern": "^<$"},
        {"type": "string", "enum": ["a"], "maxLength": 3},
        {"type": "string", "pattern": "^aaaa$", "maxLength": 3},
    ],
)
def test_what_cannot_be_kept_to_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        raw_text(schema, TAGS[0], GbnfRules())
