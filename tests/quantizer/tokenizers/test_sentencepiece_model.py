from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.checkpoint.config import CheckpointError
from quantizer.tokenizers.sentencepiece_model import Algorithm, parse_piece_model, read_piece_model
from quantizer.tokenizers.vocabulary import Token, TokenType
from tests.quantizer.tokenizer_files import piece_model

PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁hello", -1.5, 1), ("<0x41>", 0.0, 6)]
WHOLE = piece_model(PIECES, [(3, 2), (43, (1 << 64) - 1)], [(3, 0), (4, 0)])


def test_pieces_have_text_score_and_type() -> None:
    model = parse_piece_model(WHOLE, "tokenizer.model")
    assert model.pieces[3] == Token("▁hello", TokenType.NORMAL, -1.5)
    assert [piece.type for piece in model.pieces] == [2, 3, 3, 1, 6]


def test_the_trainer_and_the_normalizer_are_read() -> None:
    model = parse_piece_model(WHOLE, "tokenizer.model")
    assert model.algorithm is Algorithm.BPE
    assert (model.adds_space_prefix, model.removes_extra_spaces) == (False, False)
    assert model.special_ids == {"unk": 0, "bos": 1, "eos": 2}


def test_what_a_file_leaves_out_has_sentencepieces_defaults() -> None:
    model = parse_piece_model(piece_model(PIECES, [], []), "tokenizer.model")
    assert model.algorithm is Algorithm.UNIGRAM
    assert (model.adds_space_prefix, model.removes_extra_spaces) == (True, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a protocol buffer",
        WHOLE[:-1],
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\x02\x0a\x7f",
        b"\x80" * 40,
        b"\x0b",
        piece_model([("x", float("nan"), 1)], [], []),
        piece_model([("x", 0.0, 9)], [], []),
        piece_model(PIECES, [(3, 77)], []),
        b"\x0a\x04\x0a\x02\xff\xfe",
        b"\x08\x01",
    ],
)
def test_bytes_that_sentencepiece_does_not_write_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.model (is invalid|contains no pieces)"):
        parse_piece_model(data, "tokenizer.model")


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.binary(max_size=400)
    | st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=6)).map(
        lambda change: WHOLE[: change[0]] + change[1] + WHOLE[change[0] + len(change[1]) :]
    )
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        model = parse_piece_model(data, "tokenizer.model")
    except CheckpointError:
        return
    assert sum(len(piece.text.encode()) for piece in model.pieces) + len(model.charsmap) <= len(data)


def test_a_declared_length_asks_for_no_memory() -> None:
    hostile = b"\x0a\xf0\xff\xff\xff\x0f" + b"\x0a" * 100
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        parse_piece_model(hostile, "tokenizer.model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.model cannot be read"):
        read_piece_model(tmp_path / "tokenizer.model")
