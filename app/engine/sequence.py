"""One request while it is being answered: its tokens, how many of them are computed, and what it has said.

The mutable state that `app.engine.core` moves forward. Knows nothing of other sequences or of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.engine.backend import Sampler
from app.engine.detokenize import TextStream
from app.engine.request import FinishReason, Request, Timings, Usage
from app.engine.scheduler import Demand

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is prompt and answer; the first `n_computed` are in the cache under `sequence_id` (None: not admitted).

    `limit` is the most tokens that prompt and answer may have together. Times are in seconds on one monotonic clock.
    """

    request: Request
    arrival: int
    tokens: list[int]
    n_prompt: int
    limit: int
    sampler: Sampler
    arrived_s: float
    text: TextStream = field(init=False)
    sequence_id: int | None = None
    n_computed: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.text = TextStream(self.request.stop)

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def demand(self) -> Demand:
        """What this sequence asks of the scheduler; one that was put back computes its answer again like a prompt."""
        return Demand(
            key=self.arrival,
            n_pending=self.n_pending,
            n_draft=0,
            is_answering=self.n_pending == 1 and self.n_output > 0,
            rank=(-self.request.priority, self.arrival),
        )

    def usage(self) -> Usage:
        return Usage(n_prompt_tokens=self.n_prompt, n_output_tokens=self.n_output)

    def timings(self, now_s: float) -> Timings:
        """Return where the time went until `now_s`; stages that did not begin took none."""
        admitted_s = now_s if self.admitted_s is None else self.admitted_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        return Timings(
            queue_s=admitted_s - self.arrived_s, prefill_s=first_token_s - admitted_s, decode_s=now_s - first_token_s
        )
