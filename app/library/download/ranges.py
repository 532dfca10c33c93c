"""Which bytes of a file are there and which are not. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

__all__ = ["Range", "Ranges"]


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
