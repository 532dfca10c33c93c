"""Waiting and running sequences: slots in the cache are assigned by rank and preempted when cells run out.

Owns both lists, and which adapter set of the running ones has its turn; each running sequence has a locked slot in the
cache. Independent of batches and sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many

from app.engine.cache.kv_cache import KVCacheManager
from app.engine.loop.sequence import Sequence
from app.engine.protocol.messages import BackendFacts
from app.engine.request import AdapterSet
from app.engine.speculative.suffix_index import NO_DRAFT

TURN_S = 0.15  # of an adapter set
WORTH_WAITING_TOKENS = 64  # of a shared prefix that another request is computing


class SlotManager:
    """All unfinished sequences. At most `facts.n_sequences` run at once."""

    def __init__(self, facts: BackendFacts, cache: KVCacheManager, clock: Callable[[], float]) -> None:
        self._facts = facts
        self._cache = cache
        self._clock = clock
        self._waiting: list[Sequence] = []
        self._n_most = facts.n_sequences  # that may run
        self.running: list[Sequence] = []

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over a copy of all sequences, running ones first."""
        return iter([*self.running, *self._waiting])

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence` for a slot."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence`; its computed tokens stay cached for others."""
        self._n_most = self._facts.n_sequences
        self._release_slot(sequence)
        (self.running if sequence in self.running else self._waiting).remove(sequence)

    def start_waiting(self) -> None:
        """Start waiting sequences, best rank first, while there are slots and cells for all their tokens.

        A sequence whose prefix is being computed by another waits in order to share it.
        """
        for sequence in sorted(self._waiting, key=lambda waiting: waiting.demand.rank):
            if len(self.running) >= self._n_most:
                return
            n_cached = self._cache.n_cached(sequence.reusable, sequence.adapters)
            if not sequence.is_scoring and self._is_being_computed(sequence, n_cached):
                continue
            n_reserved = sum(running.n_pending for running in self.running)
            if n_reserved + len(sequence.tokens) + 1 > self._cache.n_cells_available():
                return
            self._start(sequence)

    def free_cells_for(self, shares: dict[int, int]) -> None:
        """Evict idle sequences, then preempt the last-ranked running ones, until this step's cells are free.

        `shares` maps arrivals to the step's tokens; preempted sequences are removed from it.
        """
        while not self._cache.evict_until_free(sum(shares.values())):
            last = self.preempt_last()
            if last is None:
                return
            shares.pop(last.arrival, None)

    def preempt_last(self) -> Sequence | None:
        """Return the last-ranked running sequence to the queue; return None if it is the only one.

        Its computed tokens stay cached until the cells are needed.
        """
        if len(self.running) < 2:
            return None
        last = max(self.running, key=lambda running: running.demand.rank)
        self._release_slot(last)
        self.running.remove(last)
        self._waiting.append(last)
        return last

    def preempt_without_cells(self) -> bool:
        """Preempt one sequence, because the backend has no cells though the cache counts some, and start none before
        one ends: equal tokens of several sequences may lie in cells of their own. Return False if only one runs."""
        if self.preempt_last() is None:
            return False
        self._n_most = len(self.running)
        return True

    def _is_being_computed(self, sequence: Sequence, n_cached: int) -> bool:
        n_wanted = n_cached + WORTH_WAITING_TOKENS
        return any(
            running.n_pending > 1 and running.tokens[:n_wanted] == sequence.tokens[:n_wanted]
            for running in self.running
            if running.adapters == sequence.adapters and min(len(running.tokens), len(sequence.tokens)) > n_wanted
        )

    def _start(self, sequence: Sequence) -> None:
        slot = self._cache.allocate(
            sequence.reusable,
            sequence.adapters,
            wants_first_cells=sequence.is_scoring,
            branches=sequence.branches,
            conversation=sequence.request.conversation,
        )
        sequence.sequence_id, sequence.n_computed = slot.sequence_id, slot.n_cached
        sequence.checkpoints = slot.checkpoints
        if sequence.scheduled_s is None:
            sequence.scheduled_s = self._clock()
            sequence.n_cached = slot.n_cached
        self._waiting.remove(sequence)
        self.running.append(sequence)

    def _release_slot(self, sequence: Sequence) -> None:
        if sequence.sequence_id is not None:
            self._cache.release(sequence.sequence_id)
            sequence.sequence_id = None
            sequence.n_computed = sequence.n_repeated = 0
            sequence.draft = NO_DRAFT


class AdapterScheduler:
    """Round robin over adapter sets, of which one at a time shares batches: the one that waited longest is next.

    A native context has one set of adapters for a whole batch. Changing it costs 11 to 15 ms (two cores, the guide,
    whose steps take 0.7 ms), so a turn lasts a while.
    """

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
            ranked = [sequence.adapters for sequence in sorted(running, key=lambda sequence: sequence.demand.rank)]
            self._served = {adapters: turn for adapters, turn in self._served.items() if adapters in sets}
            self._current = min(ranked, key=lambda adapters: self._served.get(adapters, 0), default=None)
            if self._current is not None:
                self._n_turns += 1
                self._served[self._current] = self._n_turns
                self._began_s = self._clock()
        return [sequence for sequence in running if sequence.adapters == self._current]
