"""The context shift: an answer that fills the context drops its oldest tokens after a fixed head. Pure.

Only done on request, since the model then answers from an incomplete text. Independent of caches.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ContextShift", "plan_shift"]

# The first tokens are attention sinks; without them output degrades (arXiv 2309.17453).
MIN_KEPT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ContextShift:
    """A shift: the first `n_keep` tokens stay, the next `n_discard` are dropped, the others move up."""

    n_keep: int
    n_discard: int

    def __post_init__(self) -> None:
        assert self.n_keep >= 0, "a head has a length"
        assert self.n_discard > 0, "a shift drops tokens"


def plan_shift(n_tokens: int, n_keep: int, n_ctx: int) -> ContextShift:
    """Return the shift of a sequence that fills its context of `n_ctx` tokens: half of the tokens after the head.

    As in llama-server, a head that would fill the context is shortened by a few tokens.
    """
    n_head = max(0, min(max(n_keep, MIN_KEPT_TOKENS), n_ctx - MIN_KEPT_TOKENS))
    return ContextShift(n_head, max(1, (n_tokens - n_head) // 2))
