"""The drafts of running answers: proposed when they pay, and counted after their verification.

Owns the measured costs and acceptance rates across requests, and the order of the sources. Independent of the cache
and of sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from app.engine.loop.counters import DraftCounts
from app.engine.loop.scheduler import StepBudget
from app.engine.loop.sequence import Sequence
from app.engine.messages import Truncation
from app.engine.speculative.cost_model import (
    FREE_REJECTION,
    MAX_DRAFT_TOKENS,
    Acceptance,
    Rejection,
    StepCost,
    best_draft_length,
)
from app.engine.speculative.draft_source import DraftRequest, DraftSource
from app.engine.speculative.project_lookup import CorpusLookup, TextCorpora
from app.engine.speculative.prompt_lookup import CrossRequestLookup, EditLookup, PromptLookup
from app.engine.speculative.suffix_index import NO_DRAFT, Draft

FORCED = ""  # as the source of a draft: its tokens come next in any case

UNLIMITED = Truncation()


@dataclass(slots=True)
class _Candidate:
    """The best draft of an answer so far: with it the step gives `gain` times as many tokens a second as without.
    `cost` is that of making it, in units of a step of one token; 0 if it was requested as a probe."""

    sequence: Sequence
    n_max: int
    draft: Draft = NO_DRAFT
    gain: float = 1.0
    cost: float = 0.0


class _Order(NamedTuple):
    """How many tokens to request of a source, and what they cost by its estimate; 0 for a probe."""

    n_tokens: int
    draft_cost: float = 0.0
    pass_cost: float = 0.0


class Drafter:
    """The assignment of drafts to sequences. A new request begins with the acceptance rates of all earlier ones.
    Sources are used in order, those without cost first; a later one only if it may beat the best draft so far."""

    def __init__(
        self,
        cost: StepCost,
        more_sources: Many[DraftSource],
        clock: Callable[[], float],
        truncation: Truncation = UNLIMITED,
        corpora: TextCorpora | None = None,
    ) -> None:
        self._cost = cost
        self._truncation = truncation
        self._clock = clock
        self._others = CrossRequestLookup()
        self._corpus = None if corpora is None else CorpusLookup(corpora)
        looked_up: tuple[DraftSource, ...] = (PromptLookup(), EditLookup(), self._others)
        if self._corpus is not None:
            looked_up = (*looked_up, self._corpus)
        self._sources = (*looked_up, *more_sources)
        self._acceptance = {source.name: Acceptance(source.evidence) for source in self._sources}
        self.outcomes = {name: DraftCounts() for name in self._acceptance}  # of tokens verified, and of probes
        self._assigned: dict[Sequence, _Candidate] = {}  # whose drafts are not verified yet
        self._n_plain = 1  # tokens of the planned step without drafts
        self._n_step = 1  # and with the drafts chosen so far
        self._n_answers = 1  # in that step
        self.is_draft_worthwhile = False  # whether some draft may pay in that step

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self._sources)

    def new_acceptance(self) -> dict[str, Acceptance]:
        """Return the acceptance by source that a new request begins with."""
        return {name: acceptance.for_next_answer() for name, acceptance in self._acceptance.items()}

    def prepare(self, sequence: Sequence) -> None:
        """Let what drafts of a new sequence need be read, while its prompt is computed."""
        if self._corpus is not None:
            self._corpus.prepare(sequence)

    def assign(self, running: Many[Sequence], budget: StepBudget) -> None:
        """Give each running answer the draft that pays, with the drafts of the others counted in the step."""
        self.is_draft_worthwhile = False
        for candidate in self._assigned.values():  # no place in the step, or none was computed
            self._count_use(candidate, is_verified=False)
        decoding = [sequence for sequence in running if sequence.is_decoding]
        self._n_step = self._n_plain = sum(min(sequence.n_pending, budget.n_prefill_tokens) for sequence in running)
        self._n_answers = len(decoding)
        candidates = []
        for sequence in running:
            sequence.draft, sequence.drafting.probes = NO_DRAFT, ()
        for sequence in decoding if self._truncation.allows_rejection(len(decoding)) else ():
            n_room = sequence.limit - len(sequence.tokens) - 1
            n_max = min(MAX_DRAFT_TOKENS // len(decoding) - sequence.n_repeated, n_room)
            if forced := sequence.chooser.forced:
                # These come next in any case, and cost least in one batch.
                tokens = tuple(forced)[: max(0, n_max)]
                sequence.draft = Draft(tokens, (1.0,) * len(tokens), 0, FORCED)
                self._n_step += len(tokens)
                continue
            if (limit := sequence.request.max_draft_tokens) is not None:
                n_max = min(n_max, limit)
            if n_max > 0:
                candidates.append(_Candidate(sequence, n_max))
        for source in self._sources:
            self._propose(source, candidates)
        self._assigned = {candidate.sequence: candidate for candidate in candidates if candidate.draft.tokens}

    def observe_sample(self, sequence: Sequence, token: int) -> None:
        """Count the probes, which are not verified, as accepted if they equal the sampled `token`."""
        drafting = sequence.drafting
        if drafting.probes:
            best = max(drafting.probes, key=lambda probe: probe.n_matched)
            drafting.ledger.observe_probe(is_accepted=best.tokens[0] == token)
        for probe in drafting.probes:
            self._count(sequence, probe, 1, int(probe.tokens[0] == token), is_probe=True)
        sequence.drafting.probes = ()

    def record_outcome(self, sequence: Sequence, n_verified: int, n_accepted: int) -> None:
        """Count a draft of which `n_verified` tokens were verified and `n_accepted` accepted, and remove it."""
        if sequence.draft.source == FORCED:  # which tells nothing about drafts
            sequence.draft = NO_DRAFT
            return
        sequence.drafting.n_drafted += n_verified
        sequence.drafting.n_accepted += n_accepted
        counted = (self._n_plain, self._n_answers, n_verified, n_accepted, sequence.n_repeated)
        sequence.drafting.saved_s += self._cost.saved_s(*counted)
        sequence.drafting.ledger.saved_steps += self._cost.saved_steps(*counted)
        self._count(sequence, sequence.draft, n_verified, n_accepted)
        self._count_use(self._assigned.pop(sequence), is_verified=True)
        sequence.draft = NO_DRAFT

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended or is about to lose some of its text."""
        sequence.drafting.probes = ()
        for source in self._sources:
            source.release(sequence)

    def forget_texts(self) -> None:
        """Drop the texts of requests that have ended, and those of projects, some of which were removed."""
        self._others.clear()
        if self._corpus is not None:
            self._corpus.clear()

    def _propose(self, source: DraftSource, candidates: Many[_Candidate]) -> None:
        requested = [(item, order) for item in candidates if (order := self._request(source, item)).n_tokens]
        if not requested:
            return
        started_s = self._clock()
        drafts = source.propose([DraftRequest(candidate.sequence, order.n_tokens) for candidate, order in requested])
        spent_s = (self._clock() - started_s) / len(requested)
        for (candidate, order), proposed in zip(requested, drafts, strict=True):
            draft = proposed.before_media()
            candidate.sequence.drafting.saved_s -= spent_s
            if draft.tokens:
                self._consider(candidate, draft, order.pass_cost + order.draft_cost * len(draft.tokens))

    def _request(self, source: DraftSource, candidate: _Candidate) -> _Order:
        """Return what to request: tokens that may pay, or a probe."""
        n_answers, sequence = self._n_answers, candidate.sequence
        estimate = source.estimate(sequence, candidate.n_max, n_answers)
        n_step = self._n_step - len(candidate.draft.tokens)
        draft_cost, pass_cost = estimate.draft_cost, estimate.pass_cost
        is_computed = draft_cost + pass_cost > 0
        if estimate.first <= self._cost.min_first_chance(n_step, n_answers, is_lasting=is_computed):
            # Two numbers decide in nearly every step of text that repeats nothing; all chances are walked only below.
            return _Order(source.n_probe_tokens(sequence))
        rejection = self._rejection(sequence, n_step)
        with_waste = pass_cost + sequence.drafting.acceptance[source.name].wasted_cost
        best = best_draft_length(
            estimate.chances,
            self._cost,
            n_step,
            n_answers,
            draft_cost,
            rejection,
            with_waste,
            is_lasting=is_computed,
            max_loss=sequence.drafting.ledger.max_loss(sequence.n_output),
        )
        self.is_draft_worthwhile |= best.n_tokens > 0
        if not (is_computed or self.is_draft_worthwhile):  # the rate of what is computed changes slowly
            self.is_draft_worthwhile = self._may_pay_next(source, candidate, n_step)
        if best.gain > candidate.gain:
            return _Order(best.n_tokens, draft_cost, pass_cost)
        return _Order(source.n_probe_tokens(sequence))

    def _may_pay_next(self, source: DraftSource, candidate: _Candidate, n_step: int) -> bool:
        """Return whether a draft may pay after one more token, if that is as expected: what is looked up matches better
        then. Where none may, several steps run at once: between two of 13 ms the bookkeeping took 4 %."""
        later = islice(source.estimate(candidate.sequence, candidate.n_max, self._n_answers).chances, 1, None)
        return best_draft_length(later, self._cost, n_step, self._n_answers).n_tokens > 0

    def _consider(self, candidate: _Candidate, draft: Draft, cost: float) -> None:
        """Use as much of `draft` as pays if it beats the candidate; of the draft that is not used, keep a probe."""
        n_step = self._n_step - len(candidate.draft.tokens)
        sequence = candidate.sequence
        chances = sequence.drafting.acceptance[draft.source].chances(draft)
        rejection = self._rejection(sequence, n_step)
        best = best_draft_length(
            chances,
            self._cost,
            n_step,
            self._n_answers,
            rejection=rejection,
            is_lasting=cost > 0,
            max_loss=sequence.drafting.ledger.max_loss(sequence.n_output),
        )
        unused = _Candidate(sequence, candidate.n_max, draft, cost=cost)
        if best.gain > candidate.gain:
            self._n_step = n_step + best.n_tokens
            unused.draft, unused.cost = candidate.draft, candidate.cost
            candidate.draft = sequence.draft = draft.truncated(best.n_tokens)
            candidate.gain, candidate.cost = best.gain, cost
        if unused.draft.tokens:
            sequence.drafting.probes += (unused.draft.truncated(1),)
            self._count_use(unused, is_verified=False)

    def _rejection(self, sequence: Sequence, n_step: int) -> Rejection:
        """Return what a rejection would cost in a step of `n_step` tokens without a draft of `sequence`."""
        if not self._truncation.has_states:
            return FREE_REJECTION
        n_free = self._truncation.n_rollback if n_step == sequence.n_pending else 0
        return Rejection(n_free, sequence.n_pending, is_split=True)

    def _count(
        self, sequence: Sequence, draft: Draft, n_drafted: int, n_accepted: int, *, is_probe: bool = False
    ) -> None:
        self.outcomes[draft.source].add(n_drafted, n_accepted)
        for acceptance in (sequence.drafting.acceptance[draft.source], self._acceptance[draft.source]):
            acceptance.observe(draft, n_drafted, n_accepted, is_probe=is_probe)

    def _count_use(self, candidate: _Candidate, *, is_verified: bool) -> None:
        """Count what the draft of `candidate` cost against its source, or that it was worth making."""
        source = candidate.draft.source
        if is_verified or candidate.cost:
            for acceptance in (candidate.sequence.drafting.acceptance[source], self._acceptance[source]):
                acceptance.observe_use(candidate.cost, is_verified=is_verified)
