"""Drafts that a second, smaller model computes.

Owns its cache, in step with the answers that it drafts for, and what its vocabulary must share with the target's.
Independent of how drafts are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import repeat

from app.engine.backend import Backend, Chunk, DecodeStatus
from app.engine.cache.kv_cache import KVCacheManager
from app.engine.cache.prefix_tree import n_common
from app.engine.loop.sequence import Sequence
from app.engine.messages import BackendFacts
from app.engine.speculative.cost_model import CONFIDENCE, NO_ESTIMATE, DraftEstimate, StepCost
from app.engine.speculative.draft_source import (
    EXPECTED_ANSWER_TOKENS,
    DraftCost,
    DraftRequest,
    GreedyDraft,
    tokens_between_probes,
)
from app.engine.speculative.suffix_index import Draft

MAX_CATCH_UP_TOKENS = 128  # of an answer that are computed at once; more waits for the next step
MAX_OBSERVED_TOKENS = 32  # larger steps only catch up, in too many sizes to measure each
# Of vocabularies; both figures: common/speculative.cpp @ the llama.cpp vendored in llama-cpp-python 0.3.36.
MAX_SIZE_DIFFERENCE = 128  # of padding within one family of models
N_UNCHECKED = 5  # first ids: special tokens, with different names in models that otherwise agree


@dataclass(slots=True)
class _Answer:
    """An answer in the cache of the draft model: its first `n_computed` tokens, then `drafted` ones to be verified.
    `tokens` is the answer's own list, which grows. `sequence_id` is None while it has no slot in the cache."""

    tokens: list[int]
    n_computed: int
    probed_at: int
    sequence_id: int | None = None
    drafted: list[int] = field(default_factory=list)

    @property
    def slot_id(self) -> int:
        assert self.sequence_id is not None, "an answer that is computed has a slot"
        return self.sequence_id

    @property
    def n_missing(self) -> int:
        return len(self.tokens) - self.n_computed - len(self.drafted)


@dataclass(slots=True)
class _Job(GreedyDraft):
    """A draft in the making, and the answer that it continues."""

    answer: _Answer = field(kw_only=True)


class DraftModel:
    """Drafts from `backend` for a model with the facts `target`, whose steps cost `target_cost`. All requests of one
    call are drafted in the same batches. An answer without room in the cache gets no draft."""

    name = "draft model"
    evidence = CONFIDENCE

    def __init__(
        self,
        backend: Backend,
        target: BackendFacts,
        target_cost: StepCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._facts = backend.facts
        self._n_vocab = min(target.n_vocab, self._facts.n_vocab)
        self._cost = DraftCost(self._facts.model_bytes / max(1, target.model_bytes), target_cost)
        self._clock = clock
        self._cache = KVCacheManager(backend)
        self._answers: dict[Sequence, _Answer] = {}

    def set_threads(self, n_threads: int) -> None:
        self._backend.set_threads(n_threads)

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        if sequence.media:  # this model has no embeddings of pictures
            return NO_ESTIMATE
        answer = self._answer(sequence)
        n_left = min(sequence.limit - len(sequence.tokens), EXPECTED_ANSWER_TOKENS)
        catch_up = self._cost.of_step(answer.n_missing) / n_left if answer.n_missing > 2 else 0.0
        rate = sequence.drafting.acceptance[self.name].mean_rate
        return DraftEstimate(repeat(rate, n_max), rate, self._cost.per_token(n_answers) + catch_up)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        if sequence.media:
            return 0
        answer = self._answer(sequence)
        n_between = min(tokens_between_probes(sequence.drafting.acceptance[self.name]), MAX_CATCH_UP_TOKENS)
        is_due = len(answer.tokens) >= answer.probed_at + n_between
        return 1 if is_due and answer.n_missing <= MAX_CATCH_UP_TOKENS else 0

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request, empty if this model has not caught up yet or has no room."""
        # Drafted tokens that were not accepted go; the newest token of each answer is left to compute.
        for answer in self._answers.values():
            n_known = min(answer.n_computed, len(answer.tokens) - 1)
            if answer.sequence_id is not None and (answer.drafted or n_known < answer.n_computed):
                n_accepted = n_common(answer.drafted, answer.tokens[answer.n_computed : -1])
                # Where a state or a window went back further, the rest is computed again.
                n_left = self._cache.truncate(answer.sequence_id, n_known + n_accepted)
                self._cache.record_computed(answer.sequence_id, answer.drafted[: max(0, n_left - n_known)])
                answer.n_computed, answer.drafted = n_left, []
        jobs = [_Job(request, self.name, answer=self._answer(request.sequence)) for request in requests]
        draft_cost = self._cost.per_token(len(jobs))
        growing = self._catch_up(self._with_room(jobs))
        while growing := [job for job in growing if job.may_continue(draft_cost)]:
            chunks = []
            for job in growing:
                answer, token = job.answer, job.tokens[-1]
                if not answer.drafted:
                    self._cache.hold(answer.slot_id)
                chunks.append(Chunk(answer.slot_id, answer.n_computed + len(answer.drafted), [token], 1))
                answer.drafted.append(token)
            if not self._compute(chunks, growing):
                break
        return [job.draft() for job in jobs]

    def release(self, sequence: Sequence) -> None:
        """Leave the computed tokens in the cache for answers with the same prefix."""
        answer = self._answers.pop(sequence, None)
        if answer is not None and answer.sequence_id is not None:
            self._release_slot(answer)

    def check_integrity(self) -> None:
        """Assert that the cache and the answers agree; for tests."""
        self._cache.check_integrity()
        for answer in self._answers.values():
            assert answer.n_computed <= len(answer.tokens), "only drafted tokens are not the answer's own"

    # Answers and their slots

    def _answer(self, sequence: Sequence) -> _Answer:
        answer = self._answers.get(sequence)
        if answer is None:
            n_cached = self._cache.n_cached(sequence.tokens)
            answer = self._answers[sequence] = _Answer(sequence.tokens, n_cached, probed_at=sequence.n_prompt)
        return answer

    def _with_room(self, jobs: Many[_Job]) -> list[_Job]:
        """Return the jobs with enough cells, context and vocabulary, those with least to catch up first."""
        placed = [job for job in sorted(jobs, key=lambda job: job.answer.n_missing) if self._has_slot(job)]
        while placed and not self._cache.evict_until_free(
            sum(job.answer.n_missing + job.request.n_tokens for job in placed)
        ):
            self._release_slot(placed.pop().answer)
        return placed

    def _has_slot(self, job: _Job) -> bool:
        answer = job.answer
        n_cells = len(answer.tokens) + job.request.n_tokens
        if n_cells > self._facts.n_ctx or max(answer.tokens[answer.n_computed :]) >= self._facts.n_vocab:
            return False
        n_slots_used = sum(other.sequence_id is not None for other in self._answers.values())
        has_room = n_slots_used < self._facts.n_seq_max and n_cells <= self._cache.n_cells_available()
        if answer.sequence_id is None and has_room:
            slot = self._cache.allocate(answer.tokens)
            answer.sequence_id, answer.n_computed = slot.sequence_id, slot.n_cached
        return answer.sequence_id is not None

    def _release_slot(self, answer: _Answer) -> None:
        self._cache.truncate(answer.slot_id, answer.n_computed)
        self._cache.release(answer.slot_id)
        answer.sequence_id, answer.drafted = None, []

    # Batches

    def _catch_up(self, jobs: Many[_Job]) -> list[_Job]:
        """Compute the new tokens, as many as a step may; return the jobs that have their first draft token then."""
        n_left = min(self._facts.n_batch, MAX_CATCH_UP_TOKENS + len(jobs))
        chunks: list[Chunk] = []
        ready: list[_Job] = []
        for job in jobs:
            answer = job.answer
            tokens = answer.tokens[answer.n_computed : answer.n_computed + n_left]
            n_left -= len(tokens)
            is_whole = bool(tokens) and len(tokens) == answer.n_missing
            ready += [job] * is_whole
            chunks += [Chunk(answer.slot_id, answer.n_computed, tokens, int(is_whole))] if tokens else []
        if not self._compute(chunks, ready):
            return []
        for job, chunk in zip(jobs, chunks, strict=False):  # jobs without a share of the step are the last
            job.answer.n_computed += len(chunk.tokens)
            job.answer.probed_at = len(job.answer.tokens)
            self._cache.record_computed(chunk.sequence_id, chunk.tokens)
        return ready

    def _compute(self, chunks: Many[Chunk], jobs: Many[_Job]) -> bool:
        """Compute `chunks`, of which those with logits give `jobs` a token each, and measure the time. If that fails,
        all drafted tokens are dropped."""
        started_s = self._clock()
        if not chunks or self._backend.decode(chunks) is not DecodeStatus.DONE:
            for answer in self._answers.values():
                if answer.sequence_id is not None:
                    answer.n_computed = self._cache.truncate(answer.slot_id, answer.n_computed)
                    answer.drafted = []
            return False
        row, waiting = 0, iter(jobs)
        for chunk in chunks:
            row += len(chunk.tokens)
            if chunk.n_logits:
                next(waiting).append(self._backend.logits(row - 1)[: self._n_vocab])
        if row <= MAX_OBSERVED_TOKENS:
            self._cost.observe(row, self._clock() - started_s)
        return True


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model by id. `begin` and `end` are added around every text, None if nothing is."""

    kind: int
    begin: int | None
    end: int | None
    texts: Many[bytes]


def vocabulary_mismatch(target: Vocabulary, draft: Vocabulary) -> str:
    """Return why tokens of `draft` cannot replace those of `target`, as half a sentence; empty if they can."""
    if target.kind != draft.kind:
        return f"its tokenizer is of kind {draft.kind} and not {target.kind}"
    if target.begin != draft.begin:
        return f"it begins texts with token {draft.begin} and not {target.begin}"
    if target.end != draft.end:
        return f"it ends texts with token {draft.end} and not {target.end}"
    if abs(len(target.texts) - len(draft.texts)) > MAX_SIZE_DIFFERENCE:
        return f"it has {len(draft.texts)} tokens and not {len(target.texts)}"
    pairs = list(zip(target.texts, draft.texts, strict=False))[N_UNCHECKED:]
    different = next((index for index, (one, other) in enumerate(pairs, N_UNCHECKED) if one != other), None)
    if different is None:
        return ""
    one, other = (vocabulary.texts[different].decode("utf-8", "replace") for vocabulary in (target, draft))
    return f"token {different} is {other!r} and not {one!r}"
