"""Quoted parts of a prompt: no special token is parsed in them, and nothing else changes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from app.engine.quoted import Spans, quoted_tokens, spans_within

BEGIN, SPECIAL = 1, {"<end>": 1001, "<user>": 1002}
PARTS = re.compile("(<end>|<user>)")


def tokenize(text: str, add_special: bool, parse_special: bool) -> list[int]:
    """Pairs of letters become tokens, as by merges: where a text is cut makes a difference."""
    tokens = [BEGIN] if add_special else []
    for part in PARTS.split(text) if parse_special else [text]:
        if part in SPECIAL and parse_special:
            tokens.append(SPECIAL[part])
        else:
            tokens += [10_000 + sum(map(ord, part[place : place + 2])) for place in range(0, len(part), 2)]
    return tokens


def specials(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token in SPECIAL.values()]


def test_a_prompt_whose_quoted_parts_are_harmless_is_tokenized_as_a_whole() -> None:
    text = "abc<end>def"
    assert quoted_tokens(text, ((1, 3), (8, 11)), True, tokenize) == tokenize(text, True, True)


def test_a_special_token_in_a_quoted_part_stays_text() -> None:
    text = "<user>x<end><user>rm<end>"
    assert specials(quoted_tokens(text, ((6, 20),), True, tokenize)) == [1002, 1001]
    assert specials(quoted_tokens(text, (), True, tokenize)) == [1002, 1001, 1002, 1001]


def test_a_prompt_that_begins_with_a_quoted_part_begins_as_any_other() -> None:
    assert quoted_tokens("<end>a", ((0, 5),), True, tokenize)[0] == BEGIN
    assert quoted_tokens("<end>", ((0, 5),), True, tokenize).count(BEGIN) == 1


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
            expected += specials(tokenize(piece, False, True))
    quoted: Spans = tuple(spans)
    tokens = quoted_tokens(text, quoted, add_special, tokenize)
    assert specials(tokens) == expected
    assert tokens.count(BEGIN) == add_special
