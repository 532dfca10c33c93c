"""The knapsack: one choice for each item, with the least loss for any number of bytes. Pure arithmetic.

Owns the whole curve of size against loss, so that either can be the limit. Independent of tensors and types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Choice", "Frontier"]

_N_UNITS = 1 << 16  # of which a choice may waste one: what lies between all smallest and all largest, cut so finely


@dataclass(frozen=True, slots=True)
class Choice:
    """One variant of an item."""

    n_bytes: int
    loss: float


class Frontier:
    """The best choices for several items at every size, by dynamic programming over bytes: exact but for rounding.

    Rounding is upwards, so no selection is larger than its limit. An item's choices are identified by index.
    """

    def __init__(self, items: Sequence[Sequence[Choice]]) -> None:
        self._least = [min(choice.n_bytes for choice in item) for item in items]
        span = sum(max(choice.n_bytes for choice in item) for item in items) - sum(self._least)
        self._unit = -(-span // _N_UNITS) or 1
        self._costs = [
            [-(-(choice.n_bytes - least) // self._unit) for choice in item]
            for item, least in zip(items, self._least, strict=True)
        ]
        self._losses = np.zeros(sum(map(max, self._costs)) + 1)
        self._taken = [
            self._add(costs, [choice.loss for choice in item]) for costs, item in zip(self._costs, items, strict=True)
        ]

    @property
    def least_bytes(self) -> int:
        """Size of the smallest selection."""
        return sum(self._least)

    @property
    def least_loss(self) -> float:
        """Loss of the best selection."""
        return float(self._losses[-1])

    def within_bytes(self, n_bytes: int) -> list[int]:
        """Return the choices of least loss that take at most `n_bytes`, which is at least `least_bytes`."""
        assert n_bytes >= self.least_bytes
        return self._selection(min((n_bytes - self.least_bytes) // self._unit, len(self._losses) - 1))

    def within_loss(self, loss: float) -> list[int]:
        """Return the smallest choices that lose at most `loss`, which is at least `least_loss`."""
        assert loss >= self.least_loss
        return self._selection(int(np.argmax(self._losses <= loss)))

    def _add(self, costs: Sequence[int], losses: Sequence[float]) -> NDArray[np.uint8]:
        """Put one more item into the curve and return which of its choices each size takes."""
        before = self._losses
        self._losses = np.full_like(before, np.inf)
        taken = np.zeros(len(before), np.uint8)
        for index, (cost, loss) in enumerate(zip(costs, losses, strict=True)):
            with_it = before[: len(before) - cost] + loss
            is_better = with_it < self._losses[cost:]
            self._losses[cost:][is_better] = with_it[is_better]
            taken[cost:][is_better] = index
        return taken

    def _selection(self, n_units: int) -> list[int]:
        chosen = []
        for taken, costs in zip(reversed(self._taken), reversed(self._costs), strict=True):
            chosen.append(int(taken[n_units]))
            n_units -= costs[chosen[-1]]
        return chosen[::-1]
