"""What goes when an answer fills the context and may go on all the same: the oldest tokens behind a kept head. Pure.

Only done where a request asks for it, for the model then answers from a text that nobody sees whole. Knows nothing of
caches.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ContextShift", "plan_shift"]

# The first tokens draw attention whatever they say; without them models lose the thread (arXiv 2309.17453).
MIN_KEPT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ContextShift:
    """The first `n_keep` tokens stay, the `n_discard` behind them go, all others move up."""

    n_keep: int
    n_discard: int

    def __post_init__(self) -> None:
        assert self.n_keep >= 0, "a head has a length"
        assert self.n_discard > 0, "a shift makes room"


def plan_shift(n_tokens: int, n_keep: int, n_ctx: int) -> ContextShift:
    """Return the shift of a sequence that fills its context of `n_ctx` tokens: half of what is not kept goes.

    As in llama-server a head that leaves hardly any room is kept up to the last few tokens.
    """
    n_kept = max(0, min(max(n_keep, MIN_KEPT_TOKENS), n_ctx - MIN_KEPT_TOKENS))
    return ContextShift(n_kept, max(1, (n_tokens - n_kept) // 2))
