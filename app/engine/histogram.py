"""How a figure is spread, in memory that does not grow: counts in fixed buckets, each a quarter octave wide.

Owns the bounds, which are the same in every process, so that histograms add up. Knows nothing of what is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

__all__ = ["BOUNDS", "Histogram"]

# Upper bounds, inclusive, from 61 µs (or tok/s) to 65,536; what is above the last has a bucket of its own.
BOUNDS: tuple[float, ...] = tuple(2.0 ** (quarters / 4) for quarters in range(-14 * 4, 16 * 4 + 1))


@dataclass(slots=True)
class Histogram:
    """`counts[i]` figures were at most BOUNDS[i] and above the bound before; `total` is the sum of all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def record(self, value: float) -> None:
        """Count one figure, in less than a microsecond."""
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    @property
    def n_samples(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return what `share` (0 to 1) of the figures do not exceed, as exact as its bucket; None without figures.

        Figures count as evenly spread over their bucket; those past the last bound count as that bound.
        """
        rank = share * self.n_samples
        for index, n_so_far in enumerate(accumulate(self.counts)):
            if self.counts[index] and n_so_far >= rank:
                return _between(index, 1 - (n_so_far - rank) / self.counts[index])
        return None

    def buckets(self) -> Sequence[tuple[float, int]]:
        """Return (upper bound, count) of the buckets that are not empty, ascending; infinity bounds the last."""
        return [(bound, count) for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True) if count]

    def __add__(self, other: Histogram) -> Histogram:
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.total + other.total)


def _between(index: int, share: float) -> float:
    low = BOUNDS[index - 1] if index else 0.0
    high = BOUNDS[min(index, len(BOUNDS) - 1)]
    return low + share * (high - low)
