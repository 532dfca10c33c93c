"""Random workloads for an engine: when requests arrive, which ones they continue, for how long. Pure: one for each
seed.

Owns the random actions of a user of a chat: new prompts with shared prefixes, next turns, edits, regenerated answers,
stops, restarts. Independent of engines and of the meaning of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.bench.workloads import RandomText

__all__ = ["Arrival", "Workload", "random_workload"]

N_ARRIVALS = 10
_N_DOCUMENTS = 3
_DOCUMENT_WORDS = (20, 160)
_KEPT_SHARES = {"new": 0.0, "next turn": 1.0, "edit": 0.6, "again": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that arrives `delay_steps` after the one before.

    Its prompt is the first `kept_share` of the tokens that request `parent` had by then, and `fresh` tokens; with
    `is_again` it is the parent's prompt. It is stopped after `stop_after` tokens. If it `restarts`, the engine starts
    anew before it, with the same store.
    """

    delay_steps: int
    parent: int | None
    kept_share: float
    is_again: bool
    fresh: tuple[int, ...]
    n_tokens: int
    stop_after: int | None
    priority: int
    ignore_eos: bool
    restarts: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """`arrivals` in order, and the sizes of the engine that serves them; with `has_free_drafts` every draft pays."""

    n_cells: int
    n_batch: int
    has_free_drafts: bool
    arrivals: tuple[Arrival, ...]


def random_workload(seed: int, n_ctx: int, tokenize: Callable[[str], Sequence[int]]) -> Workload:
    """Return the workload of `seed` for sequences of at most `n_ctx` tokens; `tokenize` maps text to tokens."""
    chance, prose = random.Random(seed), RandomText(seed)
    documents = [tuple(tokenize(prose.words(chance.randint(*_DOCUMENT_WORDS)))) for _ in range(_N_DOCUMENTS)]
    arrivals = tuple(_arrival(index, chance, documents) for index in range(N_ARRIVALS))
    return Workload(
        n_cells=chance.choice((n_ctx, 2 * n_ctx, 4 * n_ctx)),
        n_batch=chance.choice((16, 64, n_ctx)),
        has_free_drafts=chance.random() < 0.5,
        arrivals=arrivals,
    )


def _arrival(index: int, chance: random.Random, documents: Sequence[tuple[int, ...]]) -> Arrival:
    kind = chance.choice(tuple(_KEPT_SHARES)) if index else "new"
    document = chance.choice(documents)
    begin = document[: chance.randint(1, len(document))] if kind == "new" else ()
    return Arrival(
        delay_steps=chance.choice((0, 0, 1, 4, 30)),
        parent=chance.randrange(index) if kind != "new" else None,
        kept_share=_KEPT_SHARES[kind],
        is_again=kind == "again",
        fresh=(*begin, *chance.sample(document, min(len(document), chance.randint(1, 12)))),
        n_tokens=chance.randint(1, 40),
        stop_after=chance.randrange(30) if chance.random() < 0.2 else None,
        priority=chance.choice((0, 0, 0, 1)),
        ignore_eos=chance.random() < 0.8,
        restarts=chance.random() < 0.05,
    )
