"""A second, smaller model that drafts: how it would go on itself, taking the likeliest token each time.

Owns the small model's cache, kept in step with the answers it drafts for, and what drafting costs. Knows nothing of how
drafts are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import repeat

from app.engine.backend import Backend, Chunk, DecodeStatus, ModelFacts
from app.engine.cache.kv_cache import KVCacheManager
from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import CONFIDENCE, DraftEstimate
from app.engine.speculative.draft_source import PROBE_EVERY_TOKENS, DraftCost, DraftRequest, GreedyDraft
from app.engine.speculative.step_cost import StepCost
from app.engine.speculative.suffix_index import Draft

__all__ = ["DraftModel"]

MAX_CATCH_UP_TOKENS = 128  # computed at once of what was said; more waits for the next step, as prompts do elsewhere
EXPECTED_ANSWER_TOKENS = 128  # over which the cost of catching up with a prompt is spread
MAX_OBSERVED_TOKENS = 32  # larger steps catch up, and their sizes are too many to learn each


@dataclass(slots=True)
class _Line:
    """An answer as far as this model has followed it: its first `n_computed` tokens, then `drafted` ones, in doubt.

    `tokens` is the answer's own list, which grows. `sequence_id` is its place in the cache, None while it has none.
    """

    tokens: list[int]
    n_computed: int
    n_asked_at: int
    sequence_id: int | None = None
    drafted: list[int] = field(default_factory=list)

    @property
    def slot_id(self) -> int:
        assert self.sequence_id is not None, "a line that is computed has a place"
        return self.sequence_id

    @property
    def n_missing(self) -> int:
        return len(self.tokens) - self.n_computed - len(self.drafted)

    def n_right(self) -> int:
        """Return how many of the drafted tokens were said, not counting the newest token."""
        said = self.tokens[self.n_computed : -1]
        n_same = min(len(said), len(self.drafted))
        return next((i for i in range(n_same) if said[i] != self.drafted[i]), n_same)


@dataclass(slots=True)
class _Job(GreedyDraft):
    """A draft in the making, and the line that it goes on."""

    line: _Line = field(kw_only=True)


class DraftModel:
    """Drafts from `backend` for a model with the facts `target`, whose steps cost `target_cost`.

    All answers that ask at once are drafted for in the same batches. Who finds no room in its cache gets no draft.
    """

    name = "draft model"
    evidence = CONFIDENCE

    def __init__(
        self,
        backend: Backend,
        target: ModelFacts,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._facts = backend.facts
        self._n_vocab = min(target.n_vocab, self._facts.n_vocab)
        self._cost = DraftCost(self._facts.model_bytes / max(1, target.model_bytes), target_cost)
        self._clock = clock
        self._cache = KVCacheManager(backend)
        self._lines: dict[Sequence, _Line] = {}

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:
        line = self._line(sequence)
        n_left = min(sequence.limit - len(sequence.tokens), EXPECTED_ANSWER_TOKENS)
        catch_up = self._cost.of_step(line.n_missing) / n_left if line.n_missing > 2 else 0.0
        rate = sequence.acceptance[self.name].mean_rate
        return DraftEstimate(repeat(rate, n_most), rate, self._cost.draft_cost(n_answers) + catch_up)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        line = self._line(sequence)
        is_due = len(line.tokens) >= line.n_asked_at + PROBE_EVERY_TOKENS
        return 1 if is_due and line.n_missing <= MAX_CATCH_UP_TOKENS else 0

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each question, empty where this model has not caught up yet or has no room."""
        self._settle()
        jobs = [_Job(question, self.name, line=self._line(question.sequence)) for question in questions]
        draft_cost = self._cost.draft_cost(len(jobs))
        going = self._catch_up(self._with_room(jobs))
        while going := [job for job in going if job.is_worth_going_on(draft_cost)]:
            if not self._go_on(going):
                break
        return [job.draft() for job in jobs]

    def release(self, sequence: Sequence) -> None:
        """Leave what was computed to whoever begins like it."""
        line = self._lines.pop(sequence, None)
        if line is not None and line.sequence_id is not None:
            self._leave_place(line)

    def check_integrity(self) -> None:
        """Assert that cache and lines agree; for tests."""
        self._cache.check_integrity()
        for line in self._lines.values():
            assert line.n_computed <= len(line.tokens), "only what is in doubt is not the answer's own"

    # Who is where

    def _line(self, sequence: Sequence) -> _Line:
        line = self._lines.get(sequence)
        if line is None:
            n_cached = self._cache.n_cached(sequence.tokens)
            line = self._lines[sequence] = _Line(sequence.tokens, n_cached, n_asked_at=sequence.n_prompt)
        return line

    def _settle(self) -> None:
        """Keep the drafted tokens that were said, and cut the others off; the newest token is left to compute."""
        for line in self._lines.values():
            n_known = min(line.n_computed, len(line.tokens) - 1)
            if line.sequence_id is not None and (line.drafted or n_known < line.n_computed):
                n_right = line.n_right()
                self._cache.truncate(line.sequence_id, n_known + n_right)
                self._cache.record_computed(line.sequence_id, line.drafted[:n_right])
                line.n_computed, line.drafted = n_known + n_right, []

    def _with_room(self, jobs: Many[_Job]) -> list[_Job]:
        """Return the jobs that cells, context and vocabulary suffice for, those with least to catch up first."""
        seated = [job for job in sorted(jobs, key=lambda job: job.line.n_missing) if self._has_place(job)]
        while seated and not self._cache.evict_until_free(sum(self._n_cells(job) for job in seated)):
            self._leave_place(seated.pop().line)
        return seated

    def _n_cells(self, job: _Job) -> int:
        return job.line.n_missing + job.question.n_tokens

    def _has_place(self, job: _Job) -> bool:
        line = job.line
        n_cells = len(line.tokens) + job.question.n_tokens
        if n_cells > self._facts.n_ctx or max(line.tokens[line.n_computed :]) >= self._facts.n_vocab:
            return False
        if line.sequence_id is None and n_cells <= self._cache.n_cells_available() and self._has_free_place():
            seat = self._cache.allocate(line.tokens)
            line.sequence_id, line.n_computed = seat.sequence_id, seat.n_cached
        return line.sequence_id is not None

    def _has_free_place(self) -> bool:
        return sum(line.sequence_id is not None for line in self._lines.values()) < self._facts.n_seq_max

    def _leave_place(self, line: _Line) -> None:
        self._cache.truncate(line.slot_id, line.n_computed)
        self._cache.release(line.slot_id)
        line.sequence_id, line.drafted = None, []

    # Batches

    def _catch_up(self, jobs: Many[_Job]) -> list[_Job]:
        """Compute what was said since, as much as a step may; return the jobs that have their first token by that."""
        n_left = min(self._facts.n_batch, MAX_CATCH_UP_TOKENS + len(jobs))
        chunks: list[Chunk] = []
        ready: list[_Job] = []
        for job in jobs:
            line = job.line
            tokens = line.tokens[line.n_computed : line.n_computed + n_left]
            n_left -= len(tokens)
            is_whole = bool(tokens) and len(tokens) == line.n_missing
            ready += [job] * is_whole
            chunks += [Chunk(line.slot_id, line.n_computed, tokens, int(is_whole))] if tokens else []
        if not self._compute(chunks, ready):
            return []
        for job, chunk in zip(jobs, chunks, strict=False):  # those that had no share of the step are the last ones
            job.line.n_computed += len(chunk.tokens)
            job.line.n_asked_at = len(job.line.tokens)
            self._cache.record_computed(chunk.sequence_id, chunk.tokens)
        return ready

    def _go_on(self, jobs: Many[_Job]) -> bool:
        """Draft one more token for each job. Return False when it could not be computed."""
        chunks = [
            Chunk(job.line.slot_id, job.line.n_computed + len(job.line.drafted), job.tokens[-1:], 1) for job in jobs
        ]
        for job in jobs:
            job.line.drafted.append(job.tokens[-1])
        return self._compute(chunks, jobs)

    def _compute(self, chunks: Many[Chunk], jobs: Many[_Job]) -> bool:
        """Compute `chunks`, of which those with logits give `jobs` a token each, and learn what that costs.

        Where it cannot be done, everything in doubt is cut off.
        """
        begun_s = self._clock()
        if not chunks or self._backend.decode(chunks) is not DecodeStatus.DONE:
            self._forget_doubtful()
            return False
        row, answering = 0, iter(jobs)
        for chunk in chunks:
            row += len(chunk.tokens)
            if chunk.n_logits:
                next(answering).take(self._backend.logits(row - 1)[: self._n_vocab])
        if row <= MAX_OBSERVED_TOKENS:
            self._cost.observe(row, self._clock() - begun_s)
        return True

    def _forget_doubtful(self) -> None:
        for line in self._lines.values():
            if line.sequence_id is not None:
                self._cache.truncate(line.slot_id, line.n_computed)
                line.drafted = []
