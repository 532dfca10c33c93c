"""The interface of draft sources, and the greedy draft of a source that computes.

Every source proposes single tokens, which are accepted only where they equal the sample: they leave the distribution of
the output as it was, at any temperature. One that computes proposes what the answer's sampler would draw from its
logits, where that can be known (`app.engine.loop.shared_draw`), else the likeliest token. Owns the cost of such a draft
and when it ends. Independent of how drafts are truncated and verified.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import Acceptance, DraftEstimate, Evidence, StepCost, moving_average
from app.engine.speculative.suffix_index import Draft

PROBE_EVERY_TOKENS = 64  # how often a source that does not pay drafts one token, to measure its acceptance again
_MAX_DOUBLINGS = 3
EXPECTED_ANSWER_TOKENS = 128  # that share the cost of catching up with a prompt
_N_BATCH = 64  # of tokens without logits, until their time is measured: an upper bound


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request for at most `n_tokens` that may follow `sequence`."""

    sequence: Sequence
    n_tokens: int


class DraftSource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def evidence(self) -> Evidence: ...

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:
        """Return the estimate for a draft of at most `n_max` tokens while `n_answers` answers run."""

    def n_probe_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens to request when no draft pays, only to measure their acceptance."""

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        """Return a draft for each request, empty if there is none."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended (it then has a finish reason) or is about to lose some of its text."""


def tokens_between_probes(acceptance: Acceptance) -> int:
    """Return after how many tokens a source that does not pay drafts one again: each probe that was wrong doubles it. A
    probe of a head costs about a step: of a head that is always wrong, 1.6 % of the answer's time every 64 tokens,
    0.2 % every 512."""
    return PROBE_EVERY_TOKENS << min(acceptance.n_missed_probes, _MAX_DOUBLINGS)


@dataclass(slots=True)
class GreedyDraft:
    """A draft of `source` in the making; `chance` is that of all its tokens to be accepted."""

    request: DraftRequest
    source: str
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    chance: float = 1.0

    def append(self, logits: NDArray[np.float32]) -> None:
        """Append the token that the answer's sampler would draw from `logits` and how sure that is, else the likeliest
        with its probability."""
        foreseen = self.request.sequence.chooser.sampler.foresee(logits, len(self.tokens))
        if foreseen is None:
            token = int(logits.argmax())
            confidence = float(1.0 / np.exp(logits - logits[token]).sum())
        else:
            token, confidence = foreseen
        self.tokens.append(token)
        self.chances.append(confidence)
        acceptance = self.request.sequence.drafting.acceptance[self.source]
        self.chance *= next(acceptance.chances(Draft((token,), (confidence,), 0)))

    def may_continue(self, draft_cost: float) -> bool:
        """Return whether one more token may pay that costs `draft_cost`, in units of a step of one token."""
        return len(self.tokens) < self.request.n_tokens and self.chance > draft_cost

    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.chances), 0, self.source)


class DraftCost:
    """The cost of drafting in units of the target's step of one token. Until both are measured it is `share_of_bytes`,
    the bytes read for it over those of the target."""

    def __init__(self, share_of_bytes: float, target: StepCost) -> None:
        self._share_of_bytes = share_of_bytes
        self._target = target
        self._own = StepCost()
        self._waiting_token_s: float | None = None

    def observe(self, n_tokens: int, duration_s: float) -> None:
        self._follow_threads()
        self._own.observe(n_tokens, duration_s)

    def _follow_threads(self) -> None:
        """Use the costs that belong to the threads by which both compute now."""
        if self._own.n_threads != self._target.n_threads:
            self._own.use_threads(self._target.n_threads)
            self._waiting_token_s = None

    def of_step(self, n_tokens: int) -> float:
        self._follow_threads()
        own_s, target_s = self._own.single_s, self._target.single_s
        single = own_s / target_s if own_s and target_s else self._share_of_bytes
        return single * self._own.ratio(n_tokens)

    def per_token(self, n_answers: int) -> float:
        """Return the cost of a token while drafting for `n_answers` in the same steps."""
        return self.of_step(n_answers) / max(1, n_answers)

    def observe_waiting(self, n_tokens: int, duration_s: float) -> None:
        """Count `n_tokens` that were computed without drafting."""
        if duration_s > 0.0:
            self._waiting_token_s = moving_average(self._waiting_token_s, duration_s / n_tokens)

    def of_waiting(self, n_tokens: int) -> float:
        """Return the cost of computing `n_tokens` before the first draft."""
        target_s = self._target.single_s
        if self._waiting_token_s and target_s:
            return n_tokens * self._waiting_token_s / target_s
        return n_tokens * self.of_step(_N_BATCH) / _N_BATCH
