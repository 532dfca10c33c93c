"""Which bytes of a file are there and which are not. Pure.

In which parts a file is fetched, and in which order. Pure.

Parts come from front to back, so that what is hashed in order follows close behind; they become smaller towards the
end, so that no connection works alone for long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Range", "Ranges", "Schedule"]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The bytes from `begin` up to, and without, `end`."""

    begin: int
    end: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


class Ranges:
    """A set of bytes, kept as few ranges that do not touch each other."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, added: Range) -> None:
        """Put in all bytes of `added`, whether they are in already or not."""
        if added.begin >= added.end:
            return
        first = bisect_left(self._ends, added.begin)
        last = bisect_right(self._begins, added.end)
        begin = min([added.begin, *self._begins[first:last][:1]])
        end = max([added.end, *self._ends[first:last][-1:]])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def missing(self, n_bytes: int) -> list[Range]:
        """What a file of `n_bytes` has that is not in, in order."""
        edges = zip([0, *self._ends], [*self._begins, n_bytes], strict=True)
        return [Range(begin, min(end, n_bytes)) for begin, end in edges if begin < min(end, n_bytes)]

    @property
    def n_bytes(self) -> int:
        """How many bytes are in."""
        return sum(self._ends) - sum(self._begins)

    @property
    def frontier(self) -> int:
        """Up to where all bytes from the first on are in."""
        return self._ends[0] if self._begins[:1] == [0] else 0


_SMALLEST_BYTES = 4 << 20
_LARGEST_BYTES = 32 << 20


class Schedule:
    """Hands out what is `missing` to `n_connections` that work at once."""

    def __init__(self, missing: Iterable[Range], n_connections: int) -> None:
        self._waiting = deque(missing)
        self._n_bytes = sum(part.n_bytes for part in self._waiting)
        self._n_connections = n_connections

    def take(self) -> Range | None:
        """Return the next part, None when all are handed out."""
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
