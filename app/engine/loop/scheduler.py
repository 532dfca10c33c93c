"""Which sequences run, and how many tokens of each a step computes.

There is no prefill phase and no decode phase: each sequence has tokens to compute and a count of those computed. Owns
the waiting sequences and the running ones, each with a locked slot in the cache, and whose adapter set has its turn.
Independent of models and sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from app.engine.cache.kv_cache import KVCacheManager
from app.engine.loop.sequence import Sequence
from app.engine.messages import BackendFacts
from app.engine.request import AdapterSet
from app.engine.speculative.suffix_index import NO_DRAFT

BLOCK_TOKENS = 16  # computed at once by CPU kernels; a remainder costs up to 1.4 times as much as a block
TURN_S = 0.15  # of an adapter set
WORTH_WAITING_TOKENS = 64  # of a shared prefix that another request is computing

Batch: TypeAlias = dict[Sequence, int]  # how many tokens of each to compute in a step, in order

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of a step: `n_tokens` in all, `n_prefill_tokens` for each running prompt while any sequence is decoding.
    One long prompt then leaves short gaps in the running answers, and several do not wait for many small steps: while 4
    prompts of 500 tokens arrive, the 95th percentile of the gaps is 6.0 s (Gemma 3 1B, 2 cores; llama-server 14.0 s).
    `n_scored_tokens` limits scored prompts, to a quarter while any is decoding: logits take memory and time.

    Of a model with states llama.cpp computes sequences of different lengths in passes of their own, each of which reads
    all weights (`split_equal` of llama-batch.cpp). There a prompt that has no place in `n_tokens`, but in
    `n_whole_tokens`, is computed whole, and another is not begun beside it to be cut; 0 for other models.
    """

    n_tokens: int
    n_prefill_tokens: int
    n_scored_tokens: int = 1 << 30
    n_whole_tokens: int = 0


def schedule(runnable: Many[Sequence], budget: StepBudget) -> Batch:
    """Return the batch of a step, at least one token of each sequence in it. Pure. Answers go first, so that they keep
    streaming; prompts share the rest of the budget, the more of it the more of them wait."""
    ordered = sorted(runnable, key=_rank)
    answers = [sequence for sequence in ordered if sequence.is_decoding]
    prompts = [sequence for sequence in ordered if not sequence.is_decoding]
    batch: Batch = {}
    n_left = budget.n_tokens
    for sequence in answers:  # before any draft: one known token, or a few that a rejected draft took with it
        if n_known := min(sequence.n_pending, n_left):
            batch[sequence] = n_known
            n_left -= n_known
    for sequence in answers:
        if n_draft := min(len(sequence.draft.tokens), n_left):  # 0 if some known tokens found no place
            batch[sequence] += n_draft
            n_left -= n_draft
    _add_prompts(batch, prompts, budget)
    for sequence in batch:
        # A share ends where states are to be saved or media begin: the tokens after that come in later steps.
        if (n_most := sequence.n_until_stop) < sequence.n_pending:
            batch[sequence] = min(batch[sequence], n_most)
    return batch


def _add_prompts(batch: Batch, prompts: Many[Sequence], budget: StepBudget) -> None:
    """Add shares of `prompts`, in order, to a `batch` of answers."""
    n_used = sum(batch.values())
    n_left, n_scored_left = budget.n_tokens - n_used, budget.n_scored_tokens
    if batch:
        n_left = min(n_left, budget.n_prefill_tokens * len(prompts))
        n_scored_left = max(1, n_scored_left // 4)
    n_answers = len(batch)
    for sequence in prompts:
        n_pending, is_scoring = sequence.n_pending, sequence.is_scoring
        n_share = min(n_pending, n_left, n_scored_left if is_scoring else n_left)
        if budget.n_whole_tokens and not is_scoring and 0 < n_share < n_pending:
            if n_used + n_pending <= budget.n_whole_tokens:
                n_share = n_pending
            elif len(batch) > n_answers:
                continue
        if not n_share:
            continue
        n_left = max(0, n_left - n_share)
        n_scored_left -= n_share if is_scoring else 0
        # A prompt that continues in the next step gets whole blocks only.
        n_over = (n_used + n_share) % BLOCK_TOKENS
        batch[sequence] = n_share - n_over if n_over < n_share < n_pending else n_share
        n_used += batch[sequence]


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

    @property
    def foremost(self) -> list[Sequence]:
        """The running sequences of the highest priority among them, in order. The others pause: a chat beside a batch
        streams as fast as alone."""
        highest = max((sequence.request.priority for sequence in self.running), default=0)
        return [sequence for sequence in self.running if sequence.request.priority == highest]

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over a copy of all sequences, running ones first."""
        return iter([*self.running, *self._waiting])

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence`; its computed tokens stay cached for others."""
        self._n_most = self._facts.n_sequences  # there may be cells for all again
        self._release_slot(sequence)
        (self.running if sequence in self.running else self._waiting).remove(sequence)

    def start_waiting(self) -> None:
        """Start waiting sequences, best rank first, while there are slots and cells for all their tokens; running ones
        of a lower priority leave theirs."""
        for sequence in sorted(self._waiting, key=_rank):
            if len(self.running) >= self._n_most and self._below(sequence) is None:
                return
            if sequence.request.reads_ahead and self._is_overtaken(sequence):
                continue
            n_cached = self._cache.n_cached(sequence.reusable, sequence.namespace)
            if not sequence.is_scoring and self._is_being_computed(sequence, n_cached):
                continue  # it waits in order to share that prefix
            while len(self.running) >= self._n_most or not self._has_cells_for(sequence):
                below = self._below(sequence)
                if below is None:
                    return
                self._preempt(below)
            # Attention reads the cells of what pauses, 11 µs a cell and step (see `KVCacheManager._offload_idle`), and
            # released ones can be taken over. What is read ahead costs nothing to give up: its tokens stay cached.
            for reading in [each for each in self.running if each.request.reads_ahead]:
                if reading.request.priority < sequence.request.priority:
                    self._preempt(reading)
            self._start(sequence)

    def without_room(self) -> list[Sequence]:
        """Return the waiting sequences that only fill the cache, and for which something would have to go that is not
        saved."""
        return [
            sequence
            for sequence in self._waiting
            if sequence.request.reads_ahead
            and not self._is_overtaken(sequence)
            and not self._cache.has_spare_cells(sequence.reusable, sequence.namespace)
        ]

    def _is_overtaken(self, sequence: Sequence) -> bool:
        return any(running.request.priority > sequence.request.priority for running in self.running)

    def _has_cells_for(self, sequence: Sequence) -> bool:
        n_reserved = sum(running.n_pending for running in self.running)
        return n_reserved + len(sequence.tokens) + 1 <= self._cache.n_cells_available()

    def _below(self, sequence: Sequence) -> Sequence | None:
        """Return the last-ranked running sequence if its priority is lower than that of `sequence`."""
        last = max(self.running, key=_rank, default=sequence)
        return last if last.request.priority < sequence.request.priority else None

    def free_cells_for(self, batch: Batch) -> None:
        """Evict idle sequences, then preempt the last-ranked running ones, which leave the batch, until its cells are
        free."""
        while not self._cache.evict_until_free(sum(batch.values())):
            last = self.preempt_last()
            if last is None:
                return
            batch.pop(last, None)

    def preempt_last(self) -> Sequence | None:
        """Return the last-ranked running sequence to the queue; return None if it is the only one. Its computed tokens
        stay cached until the cells are needed."""
        if len(self.running) < 2:
            return None
        last = max(self.running, key=_rank)
        self._preempt(last)
        return last

    def _preempt(self, sequence: Sequence) -> None:
        self._release_slot(sequence)
        self.running.remove(sequence)
        self._waiting.append(sequence)

    def preempt_without_cells(self) -> bool:
        """Preempt one sequence, because the backend has no cells though the cache counts some, and start none before
        one ends: equal tokens of several sequences may lie in cells of their own. Return False if only one runs."""
        if self.preempt_last() is None:
            return False
        self._n_most = len(self.running)
        return True

    def _is_being_computed(self, sequence: Sequence, n_cached: int) -> bool:
        # Where nobody waits for an answer, less is worth to wait for.
        n_wanted = n_cached + (WORTH_WAITING_TOKENS if sequence.request.priority >= 0 else BLOCK_TOKENS)
        return any(
            running.n_pending > 1 and running.tokens[:n_wanted] == sequence.tokens[:n_wanted]
            for running in self.running
            if running.request.priority >= sequence.request.priority  # one that would pause for it is not waited for
            and running.namespace == sequence.namespace
            and min(len(running.tokens), len(sequence.tokens)) > n_wanted
        )

    def _start(self, sequence: Sequence) -> None:
        slot = self._cache.allocate(
            sequence.reusable,
            sequence.namespace,
            wants_first_cells=sequence.is_scoring,
            branches=sequence.branches,
            conversation=sequence.request.conversation,
        )
        sequence.sequence_id, sequence.n_computed = slot.sequence_id, slot.n_cached
        sequence.checkpoints = slot.checkpoints
        if sequence.times.scheduled_s is None:  # it keeps its first figures when it is preempted
            sequence.times.scheduled_s = self._clock()
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
    """Round robin over adapter sets, of which one at a time shares batches: the one that waited longest is next. A
    native context has one set of adapters for a whole batch. Changing it costs 11 to 15 ms (two cores, the guide, whose
    steps take 0.7 ms), so a turn lasts a while."""

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
            ranked = [sequence.adapters for sequence in sorted(running, key=_rank)]
            self._served = {adapters: turn for adapters, turn in self._served.items() if adapters in sets}
            self._current = min(ranked, key=lambda adapters: self._served.get(adapters, 0), default=None)
            if self._current is not None:
                self._n_turns += 1
                self._served[self._current] = self._n_turns
                self._began_s = self._clock()
        return [sequence for sequence in running if sequence.adapters == self._current]
