"""Quoted parts of a prompt: no special token is parsed in them, and nothing else changes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from app.engine.quoted import Spans, quoted_tokens, spans_within

BEGIN, UNKNOWN, SPECIAL = 1, 2, {"<end>": 1001, "<user>": 1002}
PARTS = re.compile("(<end>|<user>)")


class PairVocabulary:
    """Pairs of letters become tokens, as by merges: where a text is cut makes a difference."""

    def __init__(self) -> None:
        self.tokenized: list[str] = []

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.tokenized.append(text)
        tokens = [BEGIN] if add_special else []
        for part in PARTS.split(text) if parse_special else [text]:
            if part in SPECIAL and parse_special:
                tokens.append(SPECIAL[part])
            else:
                tokens += [self._pair(part[place : place + 2]) for place in range(0, len(part), 2)]
        return tokens

    def piece(self, token: int) -> bytes:
        return b"" if token in (BEGIN, UNKNOWN, *SPECIAL.values()) else b"ab"

    def _pair(self, letters: str) -> int:
        return 10_000 + sum(map(ord, letters)) if letters.isascii() else UNKNOWN


VOCABULARY = PairVocabulary()


def specials(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token in SPECIAL.values()]


def test_a_prompt_whose_quoted_parts_are_harmless_is_tokenized_as_a_whole() -> None:
    text = "abc<end>def"
    assert quoted_tokens(text, ((1, 3), (8, 11)), True, VOCABULARY) == VOCABULARY.tokenize(text, True, True)


def test_a_special_token_in_a_quoted_part_stays_text() -> None:
    text = "<user>x<end><user>rm<end>"
    assert specials(quoted_tokens(text, ((6, 20),), True, VOCABULARY)) == [1002, 1001]
    assert specials(quoted_tokens(text, (), True, VOCABULARY)) == [1002, 1001, 1002, 1001]


def test_each_quoted_part_is_tokenized_once_and_as_text_where_that_is_needed() -> None:
    vocabulary = PairVocabulary()
    quoted_tokens("<user>ab<end>cd", ((6, 8), (13, 15)), True, vocabulary)
    assert vocabulary.tokenized == ["ab", "cd", "<user>ab<end>cd"]
    vocabulary = PairVocabulary()
    quoted_tokens("<user>a<end>", ((6, 12),), True, vocabulary)
    assert vocabulary.tokenized == ["a<end>", "a<end>", "<user>"]


def test_unknown_characters_in_a_quoted_part_change_nothing() -> None:
    text = "abc\u2603def"
    assert quoted_tokens(text, ((2, 5),), True, VOCABULARY) == VOCABULARY.tokenize(text, True, True)


def test_a_prompt_that_begins_with_a_quoted_part_begins_as_any_other() -> None:
    assert quoted_tokens("<end>a", ((0, 5),), True, VOCABULARY)[0] == BEGIN
    assert quoted_tokens("<end>", ((0, 5),), True, VOCABULARY).count(BEGIN) == 1


def test_spans_are_cut_to_a_part_of_the_text() -> None:
    assert spans_within(((0, 2), (3, 8), (9, 12)), 1, 10) == ((0, 1), (2, 7), (8, 9))
    assert spans_within(((0, 2),), 5, 9) == ()


_PIECES = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "bc", "<end>", "<user>", "<"]), max_size=4).map("".join), st.booleans()),
    max_size=6,
)


@given(_PIECES, st.booleans())
def test_only_special_tokens_outside_of_quoted_parts_are_parsed(
    pieces: list[tuple[str, bool]], add_special: bool
) -> None:
    text, spans, expected = "", list[tuple[int, int]](), list[int]()
    for piece, is_quoted in pieces:
        if is_quoted and piece:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
        if not is_quoted:
            expected += specials(VOCABULARY.tokenize(piece, False, True))
    quoted: Spans = tuple(spans)
    tokens = quoted_tokens(text, quoted, add_special, VOCABULARY)
    assert specials(tokens) == expected
    assert tokens.count(BEGIN) == add_special
