"""How likely the sampled tokens and their rivals were, kept until their text may be shown.

Owns the probabilities (those of the model itself, before any sampler) and the order in which they are released. Knows
nothing of how text is held back or of who asks.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from app.engine.request import TokenLogprob

__all__ = ["LogprobLedger", "log_softmax", "most_likely"]

LOWEST_LOGPROB = -9999.0  # stands for "never", as in OpenAI's answers; JSON has no infinity


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the natural logarithms of the probabilities of `logits`, shape (n_vocab,), none below -9999."""
    shifted = logits.astype(np.float64) - logits.max()
    logprobs: NDArray[np.float64] = np.maximum(shifted - np.log(np.exp(shifted).sum()), LOWEST_LOGPROB)
    return logprobs


def most_likely(logprobs: NDArray[np.float64], n_tokens: int) -> list[int]:
    """Return the ids of the `n_tokens` most likely tokens, the likeliest first, equal ones by id."""
    if n_tokens == 0:
        return []
    n_tokens = min(n_tokens, len(logprobs))
    edge = np.partition(logprobs, -n_tokens)[-n_tokens]
    ids = np.flatnonzero(logprobs >= edge)
    return [int(token) for token in ids[np.argsort(-logprobs[ids], kind="stable")][:n_tokens]]


class LogprobLedger:
    """What was sampled and not yet told. Positions are in characters of the answer."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, entry: TokenLogprob, end: int) -> None:
        """Keep `entry` until the answer is shown up to the character `end`, where its token's text ends."""
        self._entries.append((end, entry))

    def release(self, n_shown: int) -> tuple[TokenLogprob, ...]:
        """Return, once, the entries of the first `n_shown` characters. What a stop string swallowed is never told."""
        released = []
        while self._entries and self._entries[0][0] <= n_shown:
            released.append(self._entries.popleft()[1])
        return tuple(released)
