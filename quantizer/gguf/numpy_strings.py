"""Long arrays of strings in a GGUF, searched all at once with numpy.

A string is its length in eight bytes and then its bytes, so the start of each depends on the one before. But a length
of 1 to 65,535 ends in a run of six or seven zero bytes, which text does not have. The ends of such runs are found at
once; a place counts as a length only if the length before it leads there, so bytes within a string are never mistaken
for one. From the first string that this misses (an empty one, for example), the rest is walked one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<Q")
_HEAD, _TAIL, _SIZE = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_Places = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NumpyStrings:
    """The strings of an array: each is the bytes [start, stop) of `data`. Same results as `ListStrings`."""

    data: bytes
    starts: _Places
    stops: _Places

    @classmethod
    def of(cls, data: bytes, count: int) -> NumpyStrings:
        """Find the `count` strings of `data`. Raises struct.error when it ends before they do."""
        found, at = _chain(data, 0, count)
        walked: list[int] = []
        while at <= len(data) and len(found) + len(walked) < count:
            walked.append(at)
            at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            raise struct.error("a string ends behind the data")
        places = np.append(found, np.asarray(walked, np.int64))
        return cls(data, places + _LENGTH.size, np.append(places, at)[1:])

    def up_to_nul(self) -> NumpyStrings:
        n_bytes = self.stops - self.starts
        n_in_lengths = sum(np.count_nonzero(n_bytes >> shift & 0xFF == 0) for shift in range(0, 64, 8))
        if self.data.count(0) == n_in_lengths:  # quicker than looking where they are
            return self
        return NumpyStrings(self.data, self.starts, np.minimum(self.stops, self._next(b"\0", self.starts)))

    def n_distinct(self) -> int:
        """Count the different strings: only those that share a key are built and compared."""
        keys = self._keys()
        order = np.argsort(keys)
        is_repeat = np.diff(keys[order]) == 0
        is_shared = np.zeros(len(keys), np.bool_)
        is_shared[1:] |= is_repeat
        is_shared[:-1] |= is_repeat
        alike = order[is_shared]
        return len(keys) - len(alike) + len(set(self.select(alike.tolist())))

    def longest_bytes(self) -> int:
        return int((self.stops - self.starts).max(initial=0))

    def empty_indices(self) -> list[int]:
        indices: list[int] = np.flatnonzero(self.stops == self.starts).tolist()
        return indices

    def present(self, wanted: Collection[bytes]) -> set[bytes]:
        may_be = np.isin(self.stops - self.starts, list({len(string) for string in wanted}))
        return set(wanted).intersection(self.select(np.flatnonzero(may_be).tolist()))

    def select(self, indices: Sequence[int]) -> list[bytes]:
        chosen = np.asarray(indices, np.intp)
        return NumpyStrings(self.data, self.starts[chosen], self.stops[chosen]).strings()

    def all_contain_after_first(self, byte: bytes) -> bool:
        return bool((self._next(byte, self.starts + 1) < self.stops).all())

    def strings(self) -> list[bytes]:
        data = self.data
        return [data[start:stop] for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True)]

    def _next(self, byte: bytes, places: _Places) -> _Places:
        """Return the next place of `byte` from each of `places` on; the end of the data where there is none."""
        found = np.append(np.flatnonzero(np.frombuffer(self.data, np.uint8) == byte[0]), len(self.data) + 1)
        return found[np.searchsorted(found, places)]

    def _keys(self) -> npt.NDArray[np.uint64]:
        """Return a number for each, of its length and first and last eight bytes: the same for the same strings."""
        words = np.ndarray(max(len(self.data) - 7, 0), "<u8", self.data, strides=(1,))  # one begins at each byte
        n_bytes = self.stops - self.starts
        n_lacking = np.clip(8 - n_bytes, 0, 7).astype(np.uint64)  # a string comes behind eight bytes of length
        tails = np.where(n_bytes > 0, words[self.stops - 8] >> (n_lacking * np.uint64(8)), np.uint64(0))
        heads = np.where(n_bytes > 8, words[np.minimum(self.starts, len(words) - 1)], np.uint64(0))
        keys = heads * _HEAD
        keys ^= (tails ^ keys >> np.uint64(29)) * _TAIL
        keys ^= n_bytes.astype(np.uint64) * _SIZE
        return keys


def skip_strings(data: bytes, at: int, count: int) -> tuple[int, int]:
    """Step over up to `count` strings from `at` on: the position reached and how many are left, which may be walked.
    The position may lie behind the data, where the last string ends."""
    found, at = _chain(data, at, count)
    return at, count - len(found)


def _chain(data: bytes, at: int, count: int) -> tuple[_Places, int]:
    """Return the places of up to `count` lengths from `at` on, each found from the one before, and where it leads."""
    values = np.frombuffer(data, np.uint8)
    places = _candidates(values[at:])[:count] + at
    if not len(places) or places[0] != at:
        return places[:0], at
    following = places + _LENGTH.size + values[places] + (values[places + 1].astype(np.int64) << 8)
    astray = np.flatnonzero(places[1:] != following[:-1])
    n_found = int(astray[0]) + 1 if len(astray) else len(places)
    return places[:n_found], int(following[n_found - 1])


def _candidates(values: _Bytes) -> _Places:
    """Return the places where eight bytes may be a length: those that end with a run of six or seven zeros."""
    is_zero = np.zeros(len(values) + 2, np.bool_)
    np.equal(values, 0, out=is_zero[1:-1])
    edges = np.flatnonzero(is_zero[1:] != is_zero[:-1])
    begins, ends = edges[::2], edges[1::2]
    n_zeros = ends - begins
    places: _Places = ends[(n_zeros == 6) | (n_zeros == 7)] - _LENGTH.size
    return places[places >= 0]
