"""tokenizer.model: the pieces and scores that SentencePiece trained, and how text is prepared for them.

Owns its protocol-buffer format, read field by field from untrusted bytes: every slice lies inside the message, and no
declared length allocates memory. Field numbers are those of sentencepiece_model.proto. Source: the encoding page of
protobuf.dev, whose library would be much for the three messages read here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from quantizer.checkpoint.config import CheckpointError
from quantizer.tokenizers.vocabulary import MAX_TOKENS, Token, TokenType, read_bytes, unsound

_MAX_BYTES = 64 << 20
_NO_ID = -1


class Algorithm(IntEnum):
    """SentencePiece's algorithms."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclass(slots=True)
class PieceModel:
    """The parts of a ModelProto that a vocabulary needs, with SentencePiece's defaults for missing fields."""

    pieces: list[Token] = field(default_factory=list)
    algorithm: Algorithm = Algorithm.UNIGRAM
    has_space_suffix: bool = False
    ids: dict[str, int] = field(default_factory=lambda: {"unk": 0, "bos": 1, "eos": 2, "pad": _NO_ID})
    charsmap: bytes = b""
    adds_space_prefix: bool = True
    removes_extra_spaces: bool = True

    @property
    def special_ids(self) -> dict[str, int]:
        return {role: i for role, i in self.ids.items() if 0 <= i < len(self.pieces)}


def read_piece_model(path: Path) -> PieceModel:
    """Read the file at `path`. Raises CheckpointError when it is not what SentencePiece writes."""
    return parse_piece_model(read_bytes(path, _MAX_BYTES), path.name)


def parse_piece_model(data: bytes, name: str) -> PieceModel:
    """Parse the bytes of the file called `name`; memory stays within a few times their number. Raises CheckpointError
    when they are not what SentencePiece writes."""
    model = PieceModel()
    parts = {1: _add_piece, 2: _read_trainer, 3: _read_normalizer}
    try:
        for number, value in _fields(memoryview(data)):
            if number in parts:
                parts[number](model, _bytes(value))
    except (_WireError, UnicodeDecodeError, ValueError) as error:
        raise unsound(name) from error
    if not model.pieces:
        raise CheckpointError(f"{name} contains no pieces.", "Download the checkpoint again.")
    return model


def _add_piece(model: PieceModel, message: memoryview) -> None:
    text, score, kind = "", 0.0, TokenType.NORMAL
    for number, value in _fields(message):
        if number == 1:
            text = str(_bytes(value), "utf-8")
        elif number == 2:
            if isinstance(value, int) or len(value) != 4:
                raise _WireError("a float is not 32 bits wide")
            score = float(struct.unpack("<f", value)[0])
        elif number == 3:
            kind = TokenType(_number(value))
    if len(model.pieces) >= MAX_TOKENS or not math.isfinite(score):
        raise _WireError("too many pieces, or a score that is not a number")
    model.pieces.append(Token(text, kind, score))


def _read_trainer(model: PieceModel, message: memoryview) -> None:
    roles = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
    for number, value in _fields(message):
        if number == 3:
            model.algorithm = Algorithm(_number(value))
        elif number == 24:
            model.has_space_suffix = bool(_number(value))
        elif number in roles:
            token_id = _number(value)
            # an int32 as a varint carries it: negative ones as 64 bits in two's complement
            model.ids[roles[number]] = token_id - (1 << 64) if token_id >> 63 else token_id


def _read_normalizer(model: PieceModel, message: memoryview) -> None:
    for number, value in _fields(message):
        if number == 2:
            model.charsmap = bytes(_bytes(value))
        elif number == 3:
            model.adds_space_prefix = bool(_number(value))
        elif number == 4:
            model.removes_extra_spaces = bool(_number(value))


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _WireError("a number where bytes should be")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise _WireError("bytes where a number should be")
    return value


_MAX_VARINT_BYTES = 10
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}


class _WireError(ValueError):
    """Bytes that are not a protocol buffer."""


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield field numbers and values in order: a number for a varint, a view of the bytes for anything else. Raises
    _WireError at the first byte that fits no field."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise _WireError("a field has no number")
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _varint(message, position)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise _WireError(f"a field has the wire type {wire_type}")
        if length > end - position:
            raise _WireError("a field is longer than its message")
        yield number, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise _WireError("a number does not end")
