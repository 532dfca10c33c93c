from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.tokenizers import Token, TokenizerVocabulary, TokenType, read_vocabulary
from tests.quantizer.tokenizer_files import BYTES, piece_model, sentence_bpe, write

CONFIG = Config({"vocab_size": 280})
PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((byte, 0.0, 6) for byte in BYTES)]
WORDS = [("▁a", -1.0, 1), ("▁▁", 0.0, 4), ("a", -2.0, 1)]
KEEPING = [(3, 1), (4, 0)]


def from_json(folder: Path, *edits: Any) -> TokenizerVocabulary:
    return read_vocabulary(write(folder, *sentence_bpe(), *edits), CONFIG)


def from_model(
    folder: Path, *, normalizer: list[tuple[int, int]] = KEEPING, pieces: Any = (*PIECES, *WORDS)
) -> TokenizerVocabulary:
    (folder / "tokenizer.model").write_bytes(piece_model(pieces, [(3, 2)], normalizer))
    return read_vocabulary(folder, CONFIG)


def test_without_scores_an_earlier_merge_scores_higher(tmp_path: Path) -> None:
    found = from_json(tmp_path)
    scores = {token.text: token.score for token in found.tokens}
    assert scores["he"] > scores["ll"] > scores["▁he"] > scores["llo"] > scores["▁hello"] > scores["h"]


def test_bytes_and_the_unknown_token_have_their_types(tmp_path: Path) -> None:
    found = from_json(tmp_path)
    assert found.alphabet.model == "llama"
    assert found.tokens[0].type is TokenType.UNKNOWN
    assert found.tokens[1].type is TokenType.CONTROL
    assert found.tokens[3] == Token("<0x00>", TokenType.BYTE, -6.0)
    assert found.tokens[279].type is TokenType.UNUSED


def test_scores_are_the_models_own_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path, *sentence_bpe())
    found = from_model(tmp_path)
    assert found.tokens[259] == Token("▁a", TokenType.NORMAL, -1.0)
    assert found.additions["bos"] is True


def test_user_defined_pieces_are_looked_for_with_real_spaces(tmp_path: Path) -> None:
    assert from_model(tmp_path).tokens[260] == Token("  ", TokenType.USER_DEFINED, 0.0)


def test_a_model_alone_names_its_special_tokens(tmp_path: Path) -> None:
    found = from_model(tmp_path)
    assert found.special_ids == {"bos": 1, "eos": 2, "unk": 0}
    assert found.additions == {}


def test_tokens_are_added_by_the_settings_when_there_is_no_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text('{"<plain>": 270, "<|im_end|>": 271}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"272": {"content": "<x>", "special": true}}}'
    )
    found = from_model(tmp_path)
    assert [found.tokens[i].type for i in (270, 271, 272)] == [
        TokenType.USER_DEFINED,
        TokenType.CONTROL,
        TokenType.CONTROL,
    ]


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "expected"),
    [
        ({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, None, False),
        (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, True),
        (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, False),
    ],
)
def test_the_form_of_spaces_decides_whether_one_is_put_first(
    tmp_path: Path, normalizer: Any, pre_tokenizer: Any, expected: bool
) -> None:
    found = from_json(tmp_path, lambda parsed, _: parsed.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer))
    assert found.alphabet.flags == {"add_space_prefix": expected}


def test_text_prepared_otherwise_is_refused_with_its_steps(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rewriting: NFKC; splits: none"):
        from_json(tmp_path, lambda parsed, _: parsed.update(normalizer={"type": "NFKC"}))


def test_a_model_that_drops_spaces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rewrites text or drops spaces"):
        from_model(tmp_path, normalizer=[(4, 1)])


def test_a_model_without_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokens for single bytes"):
        from_model(tmp_path, pieces=[*PIECES[:40], *WORDS])


def test_two_pieces_that_read_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Two tokens of the vocabulary are equal: '▁a'"):
        from_model(tmp_path, pieces=[*PIECES, *WORDS, WORDS[0]])


def test_a_model_of_whole_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(piece_model(PIECES, [(3, 3)], KEEPING))
    with pytest.raises(CheckpointError, match="splits text into words"):
        read_vocabulary(tmp_path, CONFIG)
