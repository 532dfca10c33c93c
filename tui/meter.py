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
    """Follows one answer from the moment it is made. Times are in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_at_first = 0
        self._n_tokens = 0

    def count(self, n_tokens: int) -> None:
        """Take note that the answer has `n_tokens` now."""
        self._n_tokens = n_tokens
        if self._first_s is None:
            self._first_s, self._n_at_first = self._clock(), n_tokens

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._started_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first portion; None until it means something."""
        span_s = 0.0 if self._first_s is None else self._clock() - self._first_s
        return (self._n_tokens - self._n_at_first) / span_s if span_s >= _SHORTEST_SPAN_S else None
