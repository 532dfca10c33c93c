"""The choice of tokens that each step computes. Pure.

There is no prefill phase and no decode phase: each sequence has tokens to compute and a count of those computed.
Decoding sequences go first, so that running answers keep streaming; prompts share the rest of the budget, the more of
it the more of them wait. Independent of models, caches and everything about requests but these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BLOCK_TOKENS = 16  # computed at once by CPU kernels; a remainder costs up to 1.4 times as much as a block


class TokenDemand(NamedTuple):
    """The `n_pending` tokens to compute of a sequence, of which the last `n_draft` are drafts.

    A sequence `is_decoding` once its answer has begun; it then has one known token, or a few that a rejected draft took
    with it. The smallest `rank` is served first. Each token of a prompt that
    `is_scored` gets logits.
    """

    key: int
    n_pending: int
    n_draft: int
    is_decoding: bool
    rank: tuple[int, int]
    is_scored: bool = False


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of a step: `n_tokens` in all, `n_prefill_tokens` for each waiting prompt while any sequence is decoding.

    One long prompt then leaves short gaps in the running answers, and several do not wait for many small steps.
    `n_scored_tokens` limits scored prompts, to a quarter while any is decoding: logits take memory and time.
    """

    n_tokens: int
    n_prefill_tokens: int
    n_scored_tokens: int = 1 << 30


def schedule(demands: Sequence[TokenDemand], budget: StepBudget) -> dict[int, int]:
    """Return key → number of tokens to compute in this step, in batch order; every count is at least 1.

    Each decoding sequence gets its known tokens before any gets its draft, and drafts come before prompts. A prompt
    that continues in the next step gets whole blocks only.
    """
    ordered = sorted(demands, key=lambda demand: demand.rank)
    answering = [demand for demand in ordered if demand.is_decoding]
    prompts = [demand for demand in ordered if not demand.is_decoding]
    share: dict[int, int] = {}
    n_left = budget.n_tokens
    for demand in answering:
        if n_known := min(demand.n_pending - demand.n_draft, n_left):
            share[demand.key] = n_known
            n_left -= n_known
    for demand in answering:
        n_draft = min(demand.n_draft, n_left)  # nothing is left if some known tokens found no place
        if n_draft:
            share[demand.key] += n_draft
            n_left -= n_draft
    n_scored_left = budget.n_scored_tokens
    if answering:
        n_left = min(n_left, budget.n_prefill_tokens * len(prompts))
        n_scored_left = max(1, n_scored_left // 4)
    for demand in prompts:
        n_share = min(demand.n_pending, n_left, n_scored_left if demand.is_scored else n_left)
        if n_share == 0:
            continue
        n_left -= n_share
        n_scored_left -= n_share if demand.is_scored else 0
        n_over = (sum(share.values()) + n_share) % BLOCK_TOKENS
        share[demand.key] = n_share - n_over if n_over < n_share < demand.n_pending else n_share
    return share
