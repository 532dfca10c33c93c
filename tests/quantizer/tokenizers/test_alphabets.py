from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.tokenizers import Token, TokenType
from tests.quantizer.tokenizer_files import Edit, vocabulary_of


def test_tokens_stand_at_their_ids_and_gaps_are_padded(tmp_path: Path) -> None:
    found = vocabulary_of(tmp_path)
    assert found.tokens[0] == Token("Ā")
    assert found.tokens[256] == Token("th", TokenType.NORMAL)
    assert (found.tokens[260].text, found.tokens[260].type) == ("<|im_end|>", TokenType.CONTROL)
    assert (found.tokens[271].text, found.tokens[271].type) == ("[PAD271]", TokenType.UNUSED)


def test_merges_are_pairs_with_their_spaces_encoded(tmp_path: Path) -> None:
    def edit(parsed: dict[str, Any], _settings: dict[str, Any]) -> None:
        parsed["model"]["merges"] = ["t h", [" ", "t"]]

    assert vocabulary_of(tmp_path, edit).alphabet.merges == ("t h", "Ġ t")


def test_words_may_be_added_that_text_holds_as_they_are(tmp_path: Path) -> None:
    def edit(parsed: dict[str, Any], _settings: dict[str, Any]) -> None:
        parsed["added_tokens"] += [{"id": 265, "content": "▁two▁words"}, {"id": 266, "content": "<unused7>"}]

    found = vocabulary_of(tmp_path, edit)
    assert found.tokens[265].text == " two words"
    assert [found.tokens[i].type for i in (265, 266)] == [TokenType.USER_DEFINED, TokenType.CONTROL]


def test_an_added_token_that_the_model_has_no_row_for_is_left_out(tmp_path: Path) -> None:
    found = vocabulary_of(tmp_path, lambda parsed, _: parsed["added_tokens"].append({"id": 272, "content": "<image>"}))
    assert len(found.tokens) == 272


BAD: dict[str, Edit] = {
    "tokenizers of the kind WordLevel": lambda parsed, _: parsed["model"].update(type="WordLevel"),
    "rewriting: Lowercase": lambda parsed, _: parsed.update(normalizer={"type": "Lowercase"}),
    "no merges": lambda parsed, _: parsed["model"].pop("merges"),
    "invalid merge rule": lambda parsed, _: parsed["model"]["merges"].append(["a", "b", "c"]),
    "added token 'y' is invalid": lambda parsed, _: parsed["added_tokens"].append({"id": "x", "content": "y"}),
    "list of added tokens in tokenizer.json is invalid": lambda parsed, _: parsed.update(added_tokens=["x"]),
    "vocabulary in tokenizer.json is invalid": lambda parsed, _: parsed["model"]["vocab"].update(x=-1),
    "The vocabulary in tokenizer.json is invalid": lambda parsed, _: parsed["model"]["vocab"].update(x=5),
    "vocabulary of 272": lambda parsed, _: parsed["model"]["vocab"].update(x=272),
    "Two tokens of the vocabulary are equal: 'th'": lambda parsed, _: parsed["added_tokens"].append(
        {"id": 270, "content": "th"}
    ),
    "is not an object": lambda parsed, _: parsed.update(model=[]),
}


@pytest.mark.parametrize("cause", BAD)
def test_tokenizers_that_cannot_be_converted_are_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        vocabulary_of(tmp_path, BAD[cause])
    assert cause in caught.value.cause
