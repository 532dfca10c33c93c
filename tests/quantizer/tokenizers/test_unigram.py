from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.tokenizers import Token, TokenizerVocabulary, TokenType, read_vocabulary
from tests.quantizer.tokenizer_files import piece_model, unigram, write

CONFIG = Config({"vocab_size": 16, "type_vocab_size": 1})
CHARSMAP = (1024).to_bytes(4, "little") + bytes(1024) + b"a\0"
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def read(folder: Path, *edits: Any) -> TokenizerVocabulary:
    return read_vocabulary(write(folder, *unigram(), *edits), CONFIG)


def precompiled(charsmap: bytes) -> Any:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    return lambda parsed, _settings: parsed.update(normalizer=normalizer)


def test_pieces_keep_their_log_probabilities(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.alphabet.model == "t5"
    assert found.tokens[4] == Token("▁he", TokenType.NORMAL, -2.5)
    assert found.tokens[2].type is TokenType.UNKNOWN
    assert found.n_token_types == 1


def test_the_frame_adds_an_end_to_texts(tmp_path: Path) -> None:
    assert read(tmp_path).additions == {"bos": False, "eos": True, "sep": False}


def test_splitting_at_spaces_makes_runs_of_them_one(tmp_path: Path) -> None:
    assert read(tmp_path).alphabet.flags == {"add_space_prefix": True, "remove_extra_whitespaces": True}
    kept = read(tmp_path, lambda parsed, _: parsed.update(pre_tokenizer=METASPACE, normalizer=None))
    assert kept.alphabet.flags == {"add_space_prefix": True, "remove_extra_whitespaces": False}


def test_the_map_of_characters_is_kept_as_it_is(tmp_path: Path) -> None:
    assert read(tmp_path, precompiled(CHARSMAP)).alphabet.charsmap == CHARSMAP


@pytest.mark.parametrize("charsmap", [b"\0\0", b"\xff\0\0\0abc\0", CHARSMAP[:-1]], ids=["short", "long", "cut"])
def test_a_map_of_characters_that_lies_about_its_size_is_refused(tmp_path: Path, charsmap: bytes) -> None:
    with pytest.raises(CheckpointError, match="map of characters is invalid"):
        read(tmp_path, precompiled(charsmap))


def test_a_spiece_model_is_read_alone(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2), ("▁a", -1.0, 1)]
    (tmp_path / "spiece.model").write_bytes(piece_model(pieces, [(40, 2), (41, (1 << 64) - 1), (42, 1), (43, 0)], []))
    found = read_vocabulary(tmp_path, CONFIG)
    assert found.special_ids == {"eos": 1, "unk": 2, "pad": 0}
    assert found.alphabet.flags == {"add_space_prefix": True, "remove_extra_whitespaces": True}


BAD = {
    "llama.cpp does not support for unigram": lambda parsed, _: parsed["model"].update(byte_fallback=True),
    "rewriting: NFKC": lambda parsed, _: parsed.update(normalizer={"type": "NFKC"}),
    "rewriting: none; splits: WhitespaceSplit": lambda parsed, _: parsed.update(normalizer=None),
    "splits: none": lambda parsed, _: parsed.update(pre_tokenizer=None),
    "vocabulary in tokenizer.json is invalid": lambda parsed, _: parsed["model"].update(vocab=[["a"]]),
    "token 'b' is invalid": lambda parsed, _: parsed["model"]["vocab"].append(["b", float("inf")]),
    "vocabulary of 16": lambda parsed, _: parsed["model"]["vocab"].extend([[f"x{i}", -9.0] for i in range(9)]),
}


@pytest.mark.parametrize("cause", BAD)
def test_what_llama_cpp_could_not_follow_is_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, BAD[cause])
    assert cause in caught.value.cause
