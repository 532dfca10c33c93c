"""First characters: nothing that a grammar allows is left out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.grammar.first_characters import FirstCharacters

TEXTS = st.text("aéμ漢😀", min_size=1, max_size=4)
CUTS = st.builds(lambda text, cut: text.encode()[cut:][:5], TEXTS, st.integers(0, 3))
PIECES = st.lists(st.one_of(TEXTS.map(str.encode), CUTS, st.binary(max_size=3)), max_size=60)


@given(PIECES, st.sets(TEXTS, max_size=5), st.sets(st.integers(0, 59), max_size=3))
def test_every_allowed_token_is_possible(pieces: list[bytes], texts: set[str], ends: set[int]) -> None:
    def allows(token: int) -> bool:
        """Return whether a grammar of some texts allows a token: one of them begins with it."""
        return any(text.encode().startswith(pieces[token]) for text in texts)

    ends = {token for token in ends if token < len(pieces)}
    characters = FirstCharacters(pieces, ends)
    always = np.array(sorted(ends), np.int32)
    possible = characters.possible(np.array([allows(token) for token in characters.probes], bool), always)
    assert {token for token in range(len(pieces)) if allows(token)} | ends <= set(possible.tolist())
    assert sorted(set(possible.tolist())) == possible.tolist()


def test_one_token_stands_for_all_that_begin_like_it() -> None:
    characters = FirstCharacters([b"a", b"ab", b"abc", b"b", b"ba", b"\xc3", b"<end>"], ends=[6])
    assert characters.probes.tolist() == [0, 3, 5, 6]
    allowed = np.array([True, False, False, True])
    assert characters.possible(allowed, np.array([3], np.int32)).tolist() == [0, 1, 2, 3, 6]


def test_parts_of_characters_are_not_whole() -> None:
    characters = FirstCharacters(["é".encode(), b"\xc3", b"\xa9", b"a\xc3"], ends=[])
    assert [characters.is_whole(token) for token in range(4)] == [True, False, False, False]
