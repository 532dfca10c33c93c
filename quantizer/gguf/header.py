"""The header of a GGUF file, metadata and the tensor table: read fast and checked against the file's length, and
encoded for a file that is to be written.

Large arrays are skipped, not built. What the values mean, and whether llama.cpp survives them, is checked in
`quantizer.gguf.validation`. Written is version 3, little-endian, alignment 32: sizes are exact before any weight is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import (
    ARRAY,
    BOOL,
    SCALAR_FORMATS,
    STRING,
    ArrayRef,
    ByteSource,
    Cursor,
    ModelFileError,
    Scalar,
    StringArray,
    decode_numbers,
    decode_strings,
    invalid_gguf,
    open_local,
    string_array,
)
from quantizer.gguf.tensor_types import TENSOR_TYPES, TensorType

Value: TypeAlias = Scalar | str | ArrayRef
_Decoded = TypeVar("_Decoded")

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_KEY_BYTES = 65_535  # the format's own limit
_MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME less the final NUL
_MAX_FIELDS = 65_536
_MAX_TENSORS = 262_144
_MAX_ELEMENTS = (1 << 63) - 1
_CHANGED = "it changed while it was read"
# What a file is instead of a GGUF, by its first bytes.
_IMPOSTORS = (
    (b"version https://git-lfs", "It is a Git LFS pointer: fetch the real file with `git lfs pull`."),
    (b"PK\x03\x04", "It is a zip archive or a PyTorch checkpoint: convert from the safetensors folder instead."),
    (b"<", "It looks like a web page: the download went wrong, repeat it."),
    (b"ggjt", "It is a GGML file from before August 2023: get the model as GGUF."),
    (b"tjgg", "It is a GGML file from before August 2023: get the model as GGUF."),
)


@dataclass(frozen=True, slots=True)
class Field:
    """One metadata entry: its GGUF value type, its value, and the bytes [start, stop) of the value in the file."""

    type_id: int
    value: Value
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table; `shape` is in ggml order (row length first), `offset` counts from the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in a GGUF file before its weights, which begin at `data_offset`."""

    path: Path
    version: int
    alignment: int
    fields: Mapping[str, Field]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    source: ByteSource

    @property
    def file_bytes(self) -> int:
        return self.source.n_bytes

    @property
    def metadata(self) -> dict[str, Value]:
        return {key: field.value for key, field in self.fields.items()}

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str, default: str = "") -> str:
        """Return a string value, or `default` when the key is missing or not a string."""
        value = self._value(key)
        return value if isinstance(value, str) else default

    def integer(self, key: str) -> int | None:
        """Return a whole number, or None when the key is missing or something else."""
        value = self._value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def array(self, key: str) -> list[Scalar] | list[str]:
        """Build one array, read from the file now; invalid UTF-8 in strings is replaced.
        Raises KeyError when there is no array `key`, ModelFileError when the file changed since the header was read."""
        if self.array_ref(key).element_type == STRING:
            return [str(text, "utf-8", "replace") for text in self.strings(key)]
        return self.numbers(key)

    def strings(self, key: str) -> list[bytes]:
        """Return the elements of an array of strings, undecoded. Raises as `array` does."""
        return self._decoded(key, decode_strings, is_text=True)

    def string_array(self, key: str) -> StringArray:
        """Return an array of strings to query as a whole. Raises as `array` does."""
        return self._decoded(key, string_array, is_text=True)

    def numbers(self, key: str) -> list[Scalar]:
        """Return the elements of an array of numbers or bools. Raises as `array` does."""
        return self._decoded(key, decode_numbers, is_text=False)

    def array_ref(self, key: str) -> ArrayRef:
        """Return the place of the array `key`. Raises KeyError when there is none."""
        value = self._value(key)
        if not isinstance(value, ArrayRef):
            raise KeyError(key)
        return value

    def tensor_bytes(self, tensor: TensorInfo) -> bytes:
        """Read the data of one tensor. Raises ModelFileError when the file changed since the header was read."""
        begin = self.data_offset + tensor.offset
        data = self.source.read(begin, begin + tensor.n_bytes)
        if len(data) != tensor.n_bytes:
            raise invalid_gguf(self.path.name, _CHANGED)
        return data

    def _decoded(self, key: str, decode: Callable[[ArrayRef, bytes], _Decoded], *, is_text: bool) -> _Decoded:
        ref = self.array_ref(key)
        if (ref.element_type == STRING) != is_text:
            raise KeyError(key)
        try:
            return decode(ref, self.source.read(ref.start, ref.stop))
        except struct.error as error:
            raise invalid_gguf(self.path.name, _CHANGED) from error

    def _value(self, key: str) -> Value | None:
        field = self.fields.get(key)
        return None if field is None else field.value


def read_header(path: Path) -> Header:
    """Read and check the header of the GGUF file at `path`. Raises ModelFileError, naming what is wrong, for anything
    that is not a whole, well-formed GGUF of version 2 or 3."""
    return parse_header(open_local(path), path)


def parse_header(source: ByteSource, path: Path) -> Header:
    """Read and check a header from any source of bytes; `path` names it in errors. Raises ModelFileError."""
    cursor = Cursor(source, path.name)
    version = _read_version(cursor, source, path)
    n_tensors, n_fields = cursor.u64(), cursor.u64()
    for count, limit, noun in ((n_fields, _MAX_FIELDS, "metadata entries"), (n_tensors, _MAX_TENSORS, "tensors")):
        if count > limit:
            raise cursor.invalid(f"it claims {count} {noun} where at most {limit} make sense")
    fields: dict[str, Field] = {}
    for _ in range(n_fields):
        key = _name(cursor, _MAX_KEY_BYTES, "metadata key")
        if key in fields:
            raise cursor.invalid(f"the metadata key {key!r} appears twice")
        fields[key] = _read_field(cursor, key)
    alignment = _DEFAULT_ALIGNMENT
    if (field := fields.get("general.alignment")) is not None:
        value = field.value
        if field.type_id != 4 or not isinstance(value, int) or not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
            raise cursor.invalid("its alignment is not a power of two")
        alignment = value
    tensors = _read_tensors(cursor, n_tensors, alignment)
    data_offset = _padded(cursor.position, alignment) if tensors else cursor.position
    end = data_offset + tensors[-1].offset + tensors[-1].n_bytes if tensors else 0
    if end > source.n_bytes:
        raise cursor.invalid(f"it is truncated: its tensors need {end} bytes and it has {source.n_bytes}")
    return Header(path, version, alignment, fields, tensors, data_offset, source)


def _read_version(cursor: Cursor, source: ByteSource, path: Path) -> int:
    head = source.read(0, 32)
    if head[:4] != _MAGIC:
        if not head:
            raise ModelFileError(f"{path.name} is empty.", "Download it again.")
        hints = (hint for start, hint in _IMPOSTORS if head.startswith(start))
        raise ModelFileError(f"{path.name} is not a GGUF file.", next(hints, "Name a file that begins with GGUF."))
    cursor.skip(len(_MAGIC))
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise ModelFileError(
            f"{path.name} is a big-endian GGUF, which this machine cannot run.", "Get the little-endian file."
        )
    if version not in (2, 3):
        raise ModelFileError(
            f"{path.name} is GGUF version {version}; versions 2 and 3 are supported.",
            "Convert the model again." if version < 2 else "Update localllm.",
        )
    return version


def _read_field(cursor: Cursor, key: str) -> Field:
    type_id = cursor.u32()
    start = cursor.position
    value: Value
    if type_id == STRING:
        value = str(cursor.string(), "utf-8", "replace")
    elif type_id == ARRAY:
        value = cursor.array()
    elif type_id in SCALAR_FORMATS:
        value = cursor.scalar(type_id)
    else:
        raise cursor.invalid(f"the metadata key {key!r} has the unknown type {type_id}")
    return Field(type_id, value, start, cursor.position)


def _name(cursor: Cursor, max_bytes: int, noun: str) -> str:
    raw = cursor.string(max_bytes)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise cursor.invalid(f"a {noun} is not UTF-8") from error
    if not name or not name.isprintable():
        raise cursor.invalid(f"a {noun} is empty or has control characters")
    return name


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    expected_offset = 0
    for _ in range(count):
        name = _name(cursor, _MAX_TENSOR_NAME_BYTES, "tensor name")
        n_dims = cursor.u32()
        if n_dims > 4:
            raise cursor.invalid(f"the tensor {name!r} has {n_dims} dimensions")
        shape = tuple(cursor.u64() for _ in range(n_dims))
        if 0 in shape or math.prod(shape) > _MAX_ELEMENTS:
            raise cursor.invalid(f"the tensor {name!r} has the impossible shape {shape}")
        type_id, offset = cursor.u32(), cursor.u64()
        kind = TENSOR_TYPES.get(type_id)
        if kind is None:
            raise cursor.invalid(f"the tensor {name!r} has the unknown type {type_id}")
        if not kind.fits(shape[0] if shape else 1):
            rows = f"rows of a length that is not a multiple of {kind.block_size} ({kind.name})"
            raise cursor.invalid(f"the tensor {name!r} has {rows}")
        if name in tensors:
            raise cursor.invalid(f"the tensor {name!r} appears twice")
        # llama.cpp takes only tables without gaps, which rules out overlaps too
        if offset != expected_offset:
            raise cursor.invalid(f"the tensor {name!r} starts at {offset}, not at {expected_offset}")
        tensors[name] = TensorInfo(name, shape, type_id, offset, kind.tensor_bytes(shape))
        expected_offset = _padded(offset + tensors[name].n_bytes, alignment)
    return tuple(tensors.values())


def _padded(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment


@dataclass(frozen=True, slots=True)
class _PlannedFile:
    """The beginning of a file without its data, as a ByteSource."""

    head: bytes
    n_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        return self.head[start:stop]


def planned_header(head: bytes, n_bytes: int, path: Path) -> Header:
    """Return the header of a file that does not exist: it would begin with `head` and be `n_bytes` long."""
    return parse_header(_PlannedFile(head, n_bytes), path)


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
    def n_bytes(self) -> int:  # without padding
        return self.kind.tensor_bytes(self.shape)


def encode_entry(key: str, value: object, type_name: str) -> Entry:
    """Encode a value as one of `_TYPE_IDS`, or an array of them: "u32", "str", "str[]".
    Raises CheckpointError for a number that does not fit its type: what is encoded comes from files of a checkpoint."""
    type_id = _TYPE_IDS[type_name.removesuffix("[]")]
    try:
        if type_name.endswith("[]"):
            assert isinstance(value, Sequence)
            head = struct.pack("<IQ", type_id, len(value))
            if type_id == STRING:
                return Entry(key, ARRAY, head + b"".join(map(_string, value)))
            return Entry(key, ARRAY, head + struct.pack(f"<{len(value)}{SCALAR_FORMATS[type_id][1]}", *value))
        if type_id == STRING:
            return Entry(key, STRING, _string(value))
        return Entry(key, type_id, struct.pack(SCALAR_FORMATS[type_id], bool(value) if type_id == BOOL else value))
    except (struct.error, OverflowError) as error:
        cause = f"{key} has a value that does not fit the type {type_name}."
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
    return len(header) + sum(tensor.n_bytes + padding(tensor.n_bytes) for tensor in tensors)


def padding(n_bytes: int) -> int:
    """Return how many zero bytes follow `n_bytes` up to the alignment."""
    return -n_bytes % _ALIGNMENT


def _string(text: object) -> bytes:
    raw = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw
