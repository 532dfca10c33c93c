"""The scheduler of adapter sets: sequences of one set at a time share batches.

A native context has one set of adapters for a whole batch. Changing it costs 11 to 15 ms (two cores, the guide, whose
steps take 0.7 ms), so a turn lasts a while. Independent of slots.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from app.engine.loop.sequence import Sequence
from app.engine.request import AdapterSet

__all__ = ["AdapterScheduler"]

TURN_S = 0.15


class AdapterScheduler:
    """Round robin over adapter sets: the one that waited longest is next."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._served: dict[AdapterSet, int] = {}
        self._n_turns = 0
        self._current: AdapterSet | None = None
        self._began_s = 0.0

    def next(self, running: Many[Sequence]) -> list[Sequence]:
        """Return the running sequences of one set, in order; of new sets the one with the best-ranked sequence."""
        sets = {sequence.adapters for sequence in running}
        if self._current not in sets or (len(sets) > 1 and self._clock() - self._began_s >= TURN_S):
            self._change([sequence.adapters for sequence in sorted(running, key=lambda sequence: sequence.demand.rank)])
        return [sequence for sequence in running if sequence.adapters == self._current]

    def _change(self, sets: list[AdapterSet]) -> None:
        self._served = {adapters: turn for adapters, turn in self._served.items() if adapters in sets}
        self._current = min(sets, key=lambda adapters: self._served.get(adapters, 0), default=None)
        if self._current is not None:
            self._n_turns += 1
            self._served[self._current] = self._n_turns
            self._began_s = self._clock()
