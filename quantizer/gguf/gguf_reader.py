"""The bytes of a model file, and GGUF's binary format: little-endian numbers, counted strings and arrays, read through
a sliding window.

Whatever a file claims, memory stays at one window and work at the limits below. Short arrays of strings are lists; long
ones use numpy (`numpy_strings`), imported only for them, so that user interfaces start without numpy.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from quantizer.system.errors import UserError, registered
from quantizer.system.files import explained, open_regular


@registered
class ModelFileError(UserError):
    """A model file that is missing, malformed, hostile or of an unsupported kind."""


_PERMISSIONS = "Check the path and its permissions."


class ByteSource(Protocol):
    """Random access to the bytes of one file of known length."""

    @property
    def n_bytes(self) -> int:
        """Length of the whole file in bytes."""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer where the source ends. Raises ModelFileError when it cannot be read."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file; opened for each read, so no handle is held that would block a rename on Windows."""

    path: Path
    n_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer at the end of the file. Raises ModelFileError on an I/O error."""
        with explained(f"{self.path} cannot be read", _PERMISSIONS, ModelFileError), open_regular(self.path, 0) as file:
            file.seek(start)
            return file.read(stop - start)


def open_local(path: Path) -> LocalFile:
    """Look at `path` and take its length. Raises ModelFileError when it is missing or not a regular file."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise ModelFileError(f"There is no file {path}.", "Check the path.") from error
    except (OSError, ValueError) as error:  # the second for a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{path} cannot be read: {reason}.", _PERMISSIONS) from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{path} is a folder, not a GGUF file.", "Name the .gguf file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a regular file.", "Name a .gguf file on disk.")
    return LocalFile(path, status.st_size)


BOOL, STRING, ARRAY = 7, 8, 9

# GGUF value type -> struct format; 8 is a string, 9 an array.
SCALAR_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    BOOL: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_SCALARS = {type_id: struct.Struct(form) for type_id, form in SCALAR_FORMATS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_WINDOW_BYTES = 256 << 10  # a source far away decides itself how far to read ahead
_MAX_STRING_BYTES = 256 << 20  # an embedded tokenizer.json reaches 33 MB
_MAX_STRINGS = 8_000_000  # in all arrays of one file; the largest vocabularies with merges have about a million
MANY = 20_000  # strings in an array from which on numpy is worth its import

Scalar: TypeAlias = int | float | bool


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that was walked but not built: `count` elements in the bytes [start, stop) of the file."""

    element_type: int
    count: int
    start: int
    stop: int


def invalid_gguf(name: str, what: str) -> ModelFileError:
    """Return the error for a file that breaks the format; `what` is a clause without a full stop."""
    return ModelFileError(f"{name} is not a valid GGUF file: {what}.", "Download it again, or convert the model again.")


class Cursor:
    """A position in a ByteSource that only moves forward; every read is checked against the length of the file."""

    def __init__(self, source: ByteSource, name: str) -> None:
        self.position = 0
        self._source = source
        self._name = name
        self._n_bytes = source.n_bytes
        self._window = b""
        self._base = 0
        self._n_strings = 0

    def u32(self) -> int:
        return self._number(_U32)

    def u64(self) -> int:
        return self._number(_U64)

    def scalar(self, type_id: int) -> Scalar:  # of neither a string nor an array
        return self._number(_SCALARS[type_id])

    def take(self, n_bytes: int) -> bytes:
        """Return the next `n_bytes` bytes. Raises ModelFileError past the end of the file."""
        at = self._load(n_bytes)
        self.position += n_bytes
        return self._window[at : at + n_bytes]

    def string(self, max_bytes: int = _MAX_STRING_BYTES) -> bytes:
        """Return a counted string of at most `max_bytes`, still undecoded."""
        n_bytes = self.u64()
        if n_bytes > max_bytes:
            raise self.invalid(f"a string claims {n_bytes} bytes where at most {max_bytes} make sense")
        return self.take(n_bytes)

    def array(self) -> ArrayRef:
        """Skip an array and return its place; its elements are not kept."""
        element_type, count = self.u32(), self.u64()
        start = self.position
        if element_type == STRING:
            self._skip_strings(count)
        elif element_type in _SCALARS:
            self.skip(count * _SCALARS[element_type].size)
        else:
            raise self.invalid(f"an array has elements of the unknown type {element_type}")
        return ArrayRef(element_type, count, start, self.position)

    def skip(self, n_bytes: int) -> None:
        """Move on by `n_bytes`. Raises ModelFileError past the end of the file."""
        if n_bytes > self._n_bytes - self.position:
            raise self._past_end()
        self.position += n_bytes

    def invalid(self, what: str) -> ModelFileError:
        return invalid_gguf(self._name, what)

    def _number(self, form: struct.Struct) -> int:
        at = self._load(form.size)
        self.position += form.size
        value: int = form.unpack_from(self._window, at)[0]
        return value

    def _load(self, n_bytes: int) -> int:
        """Make the next `n_bytes` lie in the window; returns where in it they start."""
        at = self.position - self._base
        if at + n_bytes <= len(self._window):
            return at
        if n_bytes > self._n_bytes - self.position:
            raise self._past_end()
        self._base = self.position
        self._window = self._source.read(self._base, self._base + max(n_bytes, _WINDOW_BYTES))
        if len(self._window) < n_bytes:
            raise self.invalid("it became shorter while it was read")
        return 0

    def _skip_strings(self, count: int) -> None:
        self._n_strings += count
        if self._n_strings > _MAX_STRINGS:
            raise self.invalid(f"its arrays claim {self._n_strings} strings where at most {_MAX_STRINGS} make sense")
        while count:
            at = self._load(_U64.size)
            at, count = _walk_strings(self._window, at, count)
            self.skip(self._base + at - self.position)

    def _past_end(self) -> ModelFileError:
        return self.invalid(f"it ends after {self._n_bytes} bytes, in the middle of its header (is it truncated?)")


def _walk_strings(window: bytes, at: int, count: int) -> tuple[int, int]:
    """Step over up to `count` strings that start in `window`; returns the position reached and how many are left."""
    if count >= MANY:
        from quantizer.gguf.numpy_strings import skip_strings  # imports numpy: user interfaces start faster without

        at, count = skip_strings(window, at, count)
    unpack = _U64.unpack_from
    left = count
    try:
        for left in range(count, 0, -1):  # noqa: B007  (read after the loop broke off)
            at += 8 + unpack(window, at)[0]
    except (struct.error, OverflowError):
        return at, left
    return at, 0


def decode_numbers(ref: ArrayRef, data: bytes) -> list[Scalar]:
    """Build an array of numbers or bools from its bytes.
    Raises struct.error when `data` is not what was walked (the file changed meanwhile)."""
    return list(struct.unpack(f"<{ref.count}{SCALAR_FORMATS[ref.element_type][1]}", data))


def decode_strings(ref: ArrayRef, data: bytes) -> list[bytes]:
    """Build an array of strings from its bytes. Raises struct.error as `decode_numbers` does."""
    if ref.count >= MANY:
        from quantizer.gguf.numpy_strings import NumpyStrings

        return NumpyStrings.of(data, ref.count).strings()
    unpack = _U64.unpack_from
    strings: list[bytes] = []
    append = strings.append
    at = 0
    for _ in range(ref.count):
        start = at + 8
        at = start + unpack(data, at)[0]
        append(data[start:at])
    return strings


class StringArray(Protocol):
    """The strings of one array, in order."""

    def up_to_nul(self) -> StringArray:
        """Return the strings up to their first NUL, as C reads them."""

    def n_distinct(self) -> int: ...

    def longest_bytes(self) -> int:
        """Return the length of the longest, 0 without any."""

    def empty_indices(self) -> list[int]:
        """Return the indices of empty strings."""

    def present(self, wanted: Collection[bytes]) -> set[bytes]:
        """Return the `wanted` strings that it contains."""

    def select(self, indices: Sequence[int]) -> list[bytes]:
        """Return the strings at `indices`."""

    def all_contain_after_first(self, byte: bytes) -> bool:
        """Return whether every string contains `byte` after its first byte."""


class ListStrings:
    """A StringArray as a list: the simple form, which tests compare the other with."""

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._strings = strings

    def up_to_nul(self) -> ListStrings:
        return ListStrings([string.partition(b"\0")[0] for string in self._strings])

    def n_distinct(self) -> int:
        return len(set(self._strings))

    def longest_bytes(self) -> int:
        return max(map(len, self._strings), default=0)

    def empty_indices(self) -> list[int]:
        return [index for index, string in enumerate(self._strings) if not string]

    def present(self, wanted: Collection[bytes]) -> set[bytes]:
        return set(wanted).intersection(self._strings)

    def select(self, indices: Sequence[int]) -> list[bytes]:
        return [self._strings[index] for index in indices]

    def all_contain_after_first(self, byte: bytes) -> bool:
        return all(string.find(byte, 1) > 0 for string in self._strings)


def string_array(ref: ArrayRef, data: bytes) -> StringArray:
    """Return the strings in the bytes of an array. Raises struct.error when `data` is not what was walked."""
    if ref.count < MANY:
        return ListStrings(decode_strings(ref, data))
    from quantizer.gguf.numpy_strings import NumpyStrings

    return NumpyStrings.of(data, ref.count)
