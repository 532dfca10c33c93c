from __future__ import annotations

from dataclasses import replace

import pytest

from app.engine.speculative.draft_model import Vocabulary, vocabulary_mismatch

TARGET = Vocabulary(kind=2, begin=1, end=None, texts=[f"t{index}".encode() for index in range(300)])


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (replace(TARGET, kind=1), "its tokenizer is of kind 1 and not 2"),
        (replace(TARGET, begin=None), "it begins texts with token None and not 1"),
        (replace(TARGET, end=7), "it ends texts with token 7 and not None"),
        (replace(TARGET, texts=TARGET.texts[:171]), "it has 171 tokens and not 300"),
        (replace(TARGET, texts=[*TARGET.texts[:9], b"\xff", *TARGET.texts[10:]]), "token 9 is '\ufffd' and not 't9'"),
    ],
)
def test_a_vocabulary_that_differs_is_refused_with_the_difference(draft: Vocabulary, reason: str) -> None:
    assert vocabulary_mismatch(TARGET, draft) == reason


@pytest.mark.parametrize(
    "draft",
    [TARGET, replace(TARGET, texts=TARGET.texts[:172]), replace(TARGET, texts=[b"<s>", *TARGET.texts[1:]])],
    ids=["the same", "padded less", "another name for a special one"],
)
def test_a_vocabulary_that_differs_only_in_padding_and_special_names_matches(draft: Vocabulary) -> None:
    assert vocabulary_mismatch(TARGET, draft) == ""
