"""The wire format of protocol buffers, read field by field from bytes that nobody has vouched for.

Owns lengths and limits: every slice lies inside what was given, and no declared length asks for memory. Knows nothing
of any message. Source: the encoding page of protobuf.dev, whose library would be much for the three messages read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["WireError", "fields", "float_of"]

_MAX_VARINT_BYTES = 10
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}


class WireError(ValueError):
    """Bytes that are no protocol buffer."""


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values in order: a number for a varint, a view of the bytes for anything else.

    Raises WireError at the first byte that fits no field.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError("a field has no number")
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        length, position = _length(message, position, wire_type)
        if length > end - position:
            raise WireError("a field is longer than its message")
        yield number, message[position : position + length]
        position += length


def float_of(value: int | memoryview) -> float:
    """The number in a fixed 32-bit field. Raises WireError for a field of another width."""
    if isinstance(value, int) or len(value) != 4:
        raise WireError("a float is not 32 bits wide")
    return float(struct.unpack("<f", value)[0])


def _length(message: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _BYTES:
        return _varint(message, position)
    if wire_type not in _FIXED_BYTES:
        raise WireError(f"a field has the wire type {wire_type}")
    return _FIXED_BYTES[wire_type], position


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise WireError("a number does not end")
