from __future__ import annotations

import random

import pytest

from app.engine.grammar.call_rules import common_begin, rest_after, texts_grammar, without_last_blank
from tests.app.gbnf_texts import Grammar

NAMES = ["get", "get_weather", "get_time", "now"]
HEADS = [f'\n{{"name": "{name}", "arguments":' for name in NAMES]


@pytest.mark.parametrize(
    ("begun", "rest"),
    [
        ("", '\n{"name": "get", "arguments":'),
        ("\n", '{"name": "get", "arguments":'),
        (" \n\n", '{"name": "get", "arguments":'),
        ('{"na', 'me": "get", "arguments":'),
        ('\n{"name":"', 'get", "arguments":'),
        ('\n{"name": "get","arguments"', ":"),
        ('\n{"name": "get", "arguments":', ""),
        ('\n{"name": "go', None),
        ('\n{"name"  ', None),
        ("[", None),
    ],
)
def test_what_was_written_leaves_the_rest(begun: str, rest: str | None) -> None:
    assert rest_after(HEADS[0], begun, is_loose=True) == rest


def test_blanks_at_the_begin_are_those_of_the_text_unless_it_is_loose() -> None:
    assert rest_after("\nwalk(", "walk", is_loose=True) == "("
    assert rest_after("\nwalk(", "walk") is None
    assert rest_after("\nwalk(", "\nwalk") == "("


@pytest.mark.parametrize("is_loose", [False, True])
def test_the_grammar_allows_just_what_leaves_nothing(is_loose: bool) -> None:
    texts = [*HEADS, "]</calls>", ""]
    grammar, chance = Grammar(texts_grammar(texts, is_loose=is_loose)), random.Random(1)
    found = set()
    for _ in range(300):
        text = grammar.sample(chance)
        ended = [each for each in texts if rest_after(each, text, is_loose=is_loose) == "" and (text or not each)]
        assert len(ended) == 1
        found.add(ended[0])
    assert found == set(texts)


def test_texts_that_begin_alike_are_written_once() -> None:
    grammar = texts_grammar([f"functions.do_this_and_{number}(" for number in range(200)])
    assert grammar.count("functions.do_this_and_") == 1


def test_the_common_begin_and_the_last_blank() -> None:
    assert common_begin(HEADS[1:3]) == '\n{"name": "get_'
    assert common_begin(["a"]) == "a"
    assert common_begin(["", "a"]) == ""
    assert without_last_blank('"arguments": ') == '"arguments":'
    assert without_last_blank("call ") == "call "
