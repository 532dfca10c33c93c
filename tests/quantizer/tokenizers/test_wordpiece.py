from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.tokenizers import Token, TokenizerVocabulary, TokenType, read_vocabulary
from tests.quantizer.tokenizer_files import word_pieces, write

CONFIG = Config({"vocab_size": 20, "type_vocab_size": 2, "pad_token_id": 0})


def read(folder: Path, *edits: Any) -> TokenizerVocabulary:
    return read_vocabulary(write(folder, *word_pieces(), *edits), CONFIG)


def from_list(folder: Path, words: str, **settings: Any) -> TokenizerVocabulary:
    (folder / "vocab.txt").write_text(words)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_vocabulary(folder, CONFIG)


def test_the_beginning_of_a_word_is_marked_and_its_continuation_is_not(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert [token.text for token in found.tokens[5:9]] == ["▁hello", "▁he", "llo", "l"]
    assert found.tokens[2] == Token("[CLS]", TokenType.CONTROL, -1000.0)
    assert found.alphabet.model == "bert"
    assert found.n_token_types == 2


def test_begin_and_end_are_berts_own(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.special_ids == {"bos": 2, "eos": 3, "unk": 1, "sep": 3, "pad": 0, "cls": 2, "mask": 4}
    assert found.additions == {"bos": True, "eos": True, "sep": False}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (True, True)),
        ({"lowercase": False}, (False, False)),
        ({"lowercase": True, "strip_accents": False}, (True, False)),
    ],
)
def test_accents_go_with_capitals_by_default(
    tmp_path: Path, options: dict[str, bool], expected: tuple[bool, bool]
) -> None:
    flags = read(tmp_path, lambda parsed, _: parsed["normalizer"].update(options)).alphabet.flags
    assert (flags["normalizer.lowercase"], flags["normalizer.strip_accents"]) == expected


def test_a_list_of_words_is_read_with_berts_names(tmp_path: Path) -> None:
    found = from_list(tmp_path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\n", do_lower_case=False)
    assert [token.text for token in found.tokens[4:7]] == ["[MASK]", "▁hello", "s"]
    assert found.special_ids["bos"] == 2
    assert found.alphabet.flags["normalizer.lowercase"] is False


def test_a_list_with_a_word_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.txt is invalid"):
        from_list(tmp_path, "a\na\n")


BAD = {
    "rewriting: BertNormalizer without handle_chinese_chars": lambda parsed, _: parsed["normalizer"].update(
        handle_chinese_chars=False
    ),
    "splits: Whitespace": lambda parsed, _: parsed.update(pre_tokenizer={"type": "Whitespace"}),
    "continuing_subword_prefix is not ##": lambda parsed, _: parsed["model"].update(continuing_subword_prefix="@@"),
    "Two tokens of the vocabulary are equal: 'llo'": lambda parsed, _: parsed["added_tokens"].append(
        {"id": 17, "content": "llo"}
    ),
}


@pytest.mark.parametrize("cause", BAD)
def test_what_llama_cpp_could_not_follow_is_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, BAD[cause])
    assert cause in caught.value.cause
