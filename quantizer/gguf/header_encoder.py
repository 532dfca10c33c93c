"""The bytes of a GGUF before its weights, and the offset of each tensor: exact before anything is written.

Owns the encoding of metadata and of the tensor table (version 3, little-endian, alignment 32); independent of where
values and weights come from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantizer.checkpoint.errors import CheckpointError
from quantizer.gguf.gguf_reader import ARRAY, BOOL, SCALAR_FORMATS, STRING
from quantizer.gguf.tensor_types import TensorType

_ALIGNMENT = 32
_VERSION = 3
_TYPE_IDS = {"u8": 0, "u16": 2, "u32": 4, "i32": 5, "f32": 6, "bool": BOOL, "str": STRING}


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata entry, already encoded: `payload` is what follows the type."""

    key: str
    type_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of an output file; `shape` in ggml order."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType

    @property
    def n_bytes(self) -> int:
        """Bytes of its data, without padding."""
        return self.kind.tensor_bytes(self.shape)


def encode_entry(key: str, value: object, type_name: str) -> Entry:
    """Encode a value as one of `_TYPE_IDS`, or an array of them: "u32", "str", "str[]".

    Raises CheckpointError for a number that does not fit its type: what is encoded comes from files of a checkpoint.
    """
    type_id = _TYPE_IDS[type_name.removesuffix("[]")]
    try:
        if type_name.endswith("[]"):
            assert isinstance(value, Sequence)
            return Entry(key, ARRAY, _array(value, type_id))
        if type_id == STRING:
            return Entry(key, STRING, _string(value))
        return Entry(key, type_id, struct.pack(SCALAR_FORMATS[type_id], bool(value) if type_id == BOOL else value))
    except (struct.error, OverflowError) as error:
        cause = f"{key} would have a number that no GGUF holds as {type_name}."
        raise CheckpointError(cause, "Check config.json and the tokenizer's files.") from error


def encode_header(entries: Sequence[Entry], tensors: Sequence[OutputTensor]) -> bytes:
    """Return everything before the data, padded so that the data starts aligned."""
    parts = [struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(entries))]
    parts += [_string(entry.key) + struct.pack("<I", entry.type_id) + entry.payload for entry in entries]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts.append(_string(tensor.name) + dims + struct.pack("<IQ", tensor.kind.type_id, offset))
        offset += tensor.n_bytes + padding(tensor.n_bytes)
    header = b"".join(parts)
    return header + bytes(padding(len(header)))


def file_bytes(header: bytes, tensors: Iterable[OutputTensor]) -> int:
    """Return length of the whole file, to the byte."""
    return len(header) + sum(tensor.n_bytes + padding(tensor.n_bytes) for tensor in tensors)


def padding(n_bytes: int) -> int:
    """Return how many zero bytes follow `n_bytes` up to the alignment."""
    return -n_bytes % _ALIGNMENT


def _array(values: Sequence[object], element_type: int) -> bytes:
    head = struct.pack("<IQ", element_type, len(values))
    if element_type == STRING:
        return head + b"".join(map(_string, values))
    return head + struct.pack(f"<{len(values)}{SCALAR_FORMATS[element_type][1]}", *values)


def _string(text: object) -> bytes:
    raw = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw
