"""A stopwatch on one answer, for figures while it runs; the engine's own replace them at its end.

Pure but for the clock it is given.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Clock", "Meter"]

Clock = Callable[[], float]

# A rate over less than this says nothing.
_SHORTEST_SPAN_S = 0.2


class Meter:
    """Counts deltas from the moment it is made. Times are in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_deltas_after_first = 0

    def count(self, n_deltas: int) -> None:
        """Take note that `n_deltas` have come just now."""
        if self._first_s is None:
            self._first_s = self._clock()
        else:
            self._n_deltas_after_first += n_deltas

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._started_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first portion, taking a delta for a token; None until it means something."""
        span_s = 0.0 if self._first_s is None else self._clock() - self._first_s
        return self._n_deltas_after_first / span_s if span_s >= _SHORTEST_SPAN_S else None
