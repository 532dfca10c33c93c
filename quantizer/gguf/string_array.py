"""Arrays of strings in a GGUF, queried as a whole: what validation needs of a vocabulary.

Short arrays are lists (`ListStrings`). Long ones use numpy (`quantizer.gguf.numpy_strings`), which gives the same
results and is imported only for them: user interfaces start without numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quantizer.gguf.gguf_reader import MANY, ArrayRef, decode_strings

__all__ = ["ListStrings", "StringArray", "string_array"]


class StringArray(Protocol):
    """The strings of one array, in order."""

    def up_to_nul(self) -> StringArray:
        """Return each of them up to the first NUL in it, as C reads it."""
        ...

    def n_distinct(self) -> int: ...

    def longest_bytes(self) -> int:
        """Return length of the longest, 0 where there is none."""
        ...

    def empty(self) -> list[int]:
        """Return the indices of those that are empty."""
        ...

    def held(self, wanted: Collection[bytes]) -> set[bytes]:
        """Return those of `wanted` that are among them."""
        ...

    def at(self, indices: Sequence[int]) -> list[bytes]:
        """Return some of them."""
        ...

    def all_hold_behind_first(self, byte: bytes) -> bool:
        """Return whether every one of them has `byte` somewhere behind its first byte."""
        ...


class ListStrings:
    """StringArray as a list: the plain reading, which tests hold the other one against."""

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._strings = strings

    def up_to_nul(self) -> ListStrings:
        return ListStrings([string.partition(b"\0")[0] for string in self._strings])

    def n_distinct(self) -> int:
        return len(set(self._strings))

    def longest_bytes(self) -> int:
        return max(map(len, self._strings), default=0)

    def empty(self) -> list[int]:
        return [index for index, string in enumerate(self._strings) if not string]

    def held(self, wanted: Collection[bytes]) -> set[bytes]:
        return set(wanted).intersection(self._strings)

    def at(self, indices: Sequence[int]) -> list[bytes]:
        return [self._strings[index] for index in indices]

    def all_hold_behind_first(self, byte: bytes) -> bool:
        return all(string.find(byte, 1) > 0 for string in self._strings)


def string_array(ref: ArrayRef, data: bytes) -> StringArray:
    """Return the strings of an array of them from its bytes. Raises struct.error when `data` is not what was walked."""
    if ref.count < MANY:
        return ListStrings(decode_strings(ref, data))
    from quantizer.gguf.numpy_strings import NumpyStrings

    return NumpyStrings.of(data, ref.count)
