"""How far a backend can take a sequence back, in degrees. Pure.

One value for all kinds of models, so that drafts, reuse of prefixes and runs of several steps ask the same question.
Independent of who removes tokens and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where a sequence can be truncated: by default at every position.

    With `n_window` some layers attend only to the last tokens, so the window before the position must still be held.
    With `has_states` (recurrent, hybrid) layers keep a state of the whole sequence, which cannot be computed backwards.
    Such a sequence goes back to its end, to the point where it was held (`Backend.hold`; `n_holds` sequences at once),
    or by up to `n_rollback` of the tokens that one batch computed after its first, if all sequences of that batch had
    equally many tokens.
    """

    has_states: bool = False
    n_window: int = 0
    n_rollback: int = 0
    n_holds: int = 0

    @property
    def is_unlimited(self) -> bool:
        """Whether every position will do, whatever was computed since."""
        return not self.has_states and not self.n_window

    def allows_rejection(self, n_sequences: int) -> bool:
        """Return whether each of `n_sequences` can lose all but the first of the tokens that a batch computes."""
        return not self.has_states or self.n_holds >= n_sequences

    def n_rejected_freely(self, lengths: Sequence[int]) -> int:
        """Return how many tokens a sequence can lose of a batch with `lengths` by sequence, without being held."""
        if not self.has_states:
            return max(lengths, default=0)
        return self.n_rollback if len(set(lengths)) == 1 else 0
