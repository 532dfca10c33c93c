"""Log probabilities of sampled tokens and their alternatives, buffered until their text is shown.

Owns the probabilities (the model's own, before samplers) and the order in which they are released. Independent of how
text is held back.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend
from app.engine.request import TokenLogprob

__all__ = ["LogprobBuffer", "most_likely", "score"]

LOWEST_LOGPROB = -9999.0  # instead of -infinity, as in OpenAI's API; JSON has no infinity


def score(backend: Backend, row: int, token: int, n_top: int) -> tuple[float, tuple[tuple[bytes, float], ...]]:
    """Return the log probability of `token` in `row`, and those of the `n_top` likeliest tokens with their text.

    None is below -9999.
    """
    logits = backend.logits(row)
    highest = logits.max()
    log_sum = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))

    def logprob(other: int) -> float:
        return max(float(logits[other]) - log_sum, LOWEST_LOGPROB)

    return logprob(token), tuple((backend.label(other), logprob(other)) for other in most_likely(logits, n_top))


def most_likely(logits: NDArray[np.float32], n_tokens: int) -> list[int]:
    """Return the ids of the `n_tokens` most likely tokens, the likeliest first, equal ones by id."""
    if n_tokens <= 1:
        return [int(logits.argmax())][:n_tokens]
    n_tokens = min(n_tokens, len(logits))
    edge = np.partition(logits, -n_tokens)[-n_tokens]
    ids = np.flatnonzero(logits >= edge)
    return [int(token) for token in ids[np.argsort(-logits[ids], kind="stable")][:n_tokens]]


class LogprobBuffer:
    """Log probabilities of tokens whose text is not shown yet. Positions are in characters of the answer."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, entry: TokenLogprob, end: int) -> None:
        """Add `entry`, to be released when the answer is shown up to the character `end`."""
        self._entries.append((end, entry))

    def release(self, n_shown: int) -> tuple[TokenLogprob, ...]:
        """Return and remove the entries of the first `n_shown` characters; those of a stop string never come."""
        released = []
        while self._entries and self._entries[0][0] <= n_shown:
            released.append(self._entries.popleft()[1])
        return tuple(released)
