from __future__ import annotations

import pytest

from app.engine.wordpiece import WordPieceTokenizer, WordPieceVocabulary
from tests.app.engine.wordpiece_texts import SPECIALS, TEXTS, reference, words


def ours(is_lowercased: bool, strips_accents: bool) -> WordPieceTokenizer:
    pieces = [word.removeprefix("##") if word.startswith("##") else f"▁{word}" for word in words()]
    return WordPieceTokenizer(
        WordPieceVocabulary(
            tokens=[*SPECIALS, *pieces],
            unknown=1,
            begin=(2,),
            end=(3,),
            controls={name: i for i, name in enumerate(SPECIALS)},
            is_lowercased=is_lowercased,
            strips_accents=strips_accents,
        )
    )


@pytest.mark.parametrize("is_lowercased", [True, False])
@pytest.mark.parametrize("strips_accents", [True, False, None])
def test_a_text_has_the_tokens_of_berts_own_tokenizer(is_lowercased: bool, strips_accents: bool | None) -> None:
    tokenize = ours(is_lowercased, is_lowercased if strips_accents is None else strips_accents)
    original = reference(is_lowercased, strips_accents)
    differing = [text for text in TEXTS if tokenize(text, True, True) != original.encode(text).ids]
    assert differing == []


def test_special_tokens_are_found_only_where_they_are_parsed() -> None:
    tokenize, original = ours(True, True), reference(True, None)
    original.encode_special_tokens = True
    text = "a [MASK]b[SEP]"
    assert tokenize(text, False, False) == original.encode(text, add_special_tokens=False).ids
    assert 4 not in tokenize(text, True, False)
    assert tokenize(text, False, True) == [tokenize("a", False, False)[0], 4, tokenize("b", False, False)[0], 3]
