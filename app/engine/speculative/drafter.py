"""Drafts for running answers: proposed where they pay, settled when they were verified, learned from either way.

Owns what is known of costs and acceptance across requests, and asks the sources. Knows nothing of the cache or of
sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from app.engine.loop.scheduler import StepBudget
from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import Acceptance, best_draft_length
from app.engine.speculative.draft_source import DraftRequest, DraftSource
from app.engine.speculative.edits import EditLookup
from app.engine.speculative.prompt_lookup import CrossRequestLookup, PromptLookup
from app.engine.speculative.step_cost import MAX_DRAFT_TOKENS, StepCost
from app.engine.speculative.suffix_index import NO_DRAFT, Draft

__all__ = ["Drafter"]


@dataclass(slots=True)
class _Offer:
    """The best draft of an answer so far: with it the step gives `gain` times as many tokens a second as without."""

    sequence: Sequence
    n_most: int
    draft: Draft = NO_DRAFT
    gain: float = 1.0


class Drafter:
    """Gives sequences their drafts. A new request begins with the acceptance that all others have shown.

    Sources are asked in order, what costs nothing first; a later one only where it may beat what is there.
    """

    def __init__(self, cost: StepCost, more_sources: Many[DraftSource], clock: Callable[[], float]) -> None:
        self._cost = cost
        self._clock = clock
        self._sources: tuple[DraftSource, ...] = (PromptLookup(), EditLookup(), CrossRequestLookup(), *more_sources)
        self._acceptance = {source.name: Acceptance(source.evidence) for source in self._sources}
        self._n_plain = 1  # tokens of the step that is planned, drafts left out
        self._n_step = 1  # and with the drafts chosen so far
        self.is_draft_worthwhile = False  # that some draft may pay in that step

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self._sources)

    def new_acceptance(self) -> dict[str, Acceptance]:
        """Return what a new request should expect of each source; it learns for itself from there."""
        return {name: acceptance.copy() for name, acceptance in self._acceptance.items()}

    def assign(self, running: Many[Sequence], budget: StepBudget) -> None:
        """Give each running answer the draft that pays, counting what the others already add to the step."""
        self.is_draft_worthwhile = False
        answering = [sequence for sequence in running if sequence.is_decoding]
        self._n_step = self._n_plain = sum(min(sequence.n_pending, budget.n_prefill_tokens) for sequence in running)
        offers = []
        for sequence in answering:
            sequence.draft, sequence.probes = NO_DRAFT, ()
            n_most = min(MAX_DRAFT_TOKENS // len(answering), sequence.limit - len(sequence.tokens) - 1)
            if n_most > 0:
                offers.append(_Offer(sequence, n_most))
        for source in self._sources:
            self._consult(source, offers, len(answering))

    def observe_sample(self, sequence: Sequence, token: int) -> None:
        """Learn from the probes that were not worth verifying, now that `token` was sampled."""
        for guess in sequence.probes:
            self._learn(sequence, guess, 1, int(guess.tokens[0] == token))
        sequence.probes = ()

    def record_outcome(self, sequence: Sequence, n_verified: int, n_accepted: int) -> None:
        """Count and learn from a draft of which `n_verified` tokens were tried and `n_accepted` taken; it is gone."""
        sequence.n_drafted += n_verified
        sequence.n_accepted += n_accepted
        sequence.saved_s += self._cost.saved_s(self._n_plain, n_verified, n_accepted)
        self._learn(sequence, sequence.draft, n_verified, n_accepted)
        sequence.draft = NO_DRAFT

    def release(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended or is about to forget some of its text."""
        sequence.probes = ()
        for source in self._sources:
            source.release(sequence)

    @property
    def step_s(self) -> float | None:
        """The seconds of a step of one token, None before one was seen."""
        return self._cost.single_s

    def observe_step(self, n_tokens: int, duration_s: float) -> None:
        """Learn what a step of answers and their drafts cost."""
        self._cost.observe(n_tokens, duration_s)

    def _consult(self, source: DraftSource, offers: Many[_Offer], n_answers: int) -> None:
        asked = [(offer, n) for offer in offers if (n := self._n_asked(source, offer, n_answers))]
        if not asked:
            return
        begun_s = self._clock()
        drafts = source.propose([DraftRequest(offer.sequence, n) for offer, n in asked])
        spent_s = (self._clock() - begun_s) / len(asked)
        for (offer, _), draft in zip(asked, drafts, strict=True):
            offer.sequence.saved_s -= spent_s
            if draft.tokens:
                self._consider(offer, draft, n_answers)

    def _n_asked(self, source: DraftSource, offer: _Offer, n_answers: int) -> int:
        """Return how many tokens to ask for: what may pay, or a guess to learn from."""
        estimate = source.estimate(offer.sequence, offer.n_most, n_answers)
        n_step = self._n_step - len(offer.draft.tokens)
        if estimate.first <= self._cost.least_chance(n_step, n_answers):
            return source.n_probe_tokens(offer.sequence)
        self.is_draft_worthwhile = True
        cut = best_draft_length(estimate.chances, self._cost, n_step, n_answers, estimate.draft_cost)
        return cut.n_tokens if cut.gain > offer.gain else source.n_probe_tokens(offer.sequence)

    def _consider(self, offer: _Offer, draft: Draft, n_answers: int) -> None:
        """Take as much of `draft` as pays if it beats the offer; of the draft that is not taken, keep a guess."""
        n_step = self._n_step - len(offer.draft.tokens)
        sequence = offer.sequence
        cut = best_draft_length(sequence.acceptance[draft.source].chances(draft), self._cost, n_step, n_answers)
        if cut.gain > offer.gain:
            self._n_step = n_step + cut.n_tokens
            sequence.draft = draft.cut(cut.n_tokens)
            offer.draft, offer.gain, draft = sequence.draft, cut.gain, offer.draft
        if draft.tokens:
            sequence.probes += (draft.cut(1),)

    def _learn(self, sequence: Sequence, draft: Draft, n_drafted: int, n_accepted: int) -> None:
        for acceptance in (sequence.acceptance[draft.source], self._acceptance[draft.source]):
            acceptance.observe(draft, n_drafted, n_accepted)
