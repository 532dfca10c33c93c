"""Arrays of strings in a GGUF, queried as a whole: what validation needs of a vocabulary.

Short arrays are lists (`ListStrings`). Long ones use numpy (`quantizer.gguf.numpy_strings`), which gives the same
results and is imported only for them: user interfaces start without numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quantizer.gguf.gguf_reader import MANY, ArrayRef, decode_strings


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
