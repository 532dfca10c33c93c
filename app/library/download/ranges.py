"""Ranges of bytes of a file: the set of those that exist, and the queue of those to fetch. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The bytes from `begin` to `end`, exclusive."""

    begin: int
    end: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


class Ranges:
    """A set of bytes as ranges that do not touch."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, added: Range) -> None:
        """Add the bytes of `added`, which may overlap."""
        if added.begin >= added.end:
            return
        first = bisect_left(self._ends, added.begin)
        last = bisect_right(self._begins, added.end)
        begin = min([added.begin, *self._begins[first:last][:1]])
        end = max([added.end, *self._ends[first:last][-1:]])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def missing(self, n_bytes: int) -> list[Range]:
        """Return the ranges of a file of `n_bytes` that are not in the set, in order."""
        edges = zip([0, *self._ends], [*self._begins, n_bytes], strict=True)
        return [Range(begin, min(end, n_bytes)) for begin, end in edges if begin < min(end, n_bytes)]

    @property
    def n_bytes(self) -> int:
        """The number of bytes in the set."""
        return sum(self._ends) - sum(self._begins)

    @property
    def frontier(self) -> int:
        """The end of the range that begins at 0; 0 without one."""
        return self._ends[0] if self._begins[:1] == [0] else 0


_SMALLEST_BYTES = 4 << 20
_LARGEST_BYTES = 32 << 20


class Schedule:
    """The queue of the `missing` parts of a file, for `n_connections` workers.

    Parts are handed out from front to back, so that hashing in order keeps up, and become smaller towards the end, so
    that no worker is busy alone for long.
    """

    def __init__(self, missing: Iterable[Range], n_connections: int) -> None:
        self._waiting = deque(missing)
        self._n_bytes = sum(part.n_bytes for part in self._waiting)
        self._n_connections = n_connections

    def take(self) -> Range | None:
        """Return the next part, None after the last."""
        if not self._waiting:
            return None
        whole = self._waiting.popleft()
        share = self._n_bytes // (2 * self._n_connections)
        end = whole.begin + min(max(share, _SMALLEST_BYTES), _LARGEST_BYTES)
        part = Range(whole.begin, min(end, whole.end))
        if part.end < whole.end:
            self._waiting.appendleft(Range(part.end, whole.end))
        self._n_bytes -= part.n_bytes
        return part
