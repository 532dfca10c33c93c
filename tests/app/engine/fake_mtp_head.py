"""A multi-token-prediction layer over the fake backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.fake import FakeBackend

_WRONG = ord("#")  # never an output of the fake backend


class FakeMtpHead:
    """A `MtpHead` over `backend`, wrong at one position in `wrong_every`, with cells for `n_ahead` tokens."""

    def __init__(
        self, backend: FakeBackend, wrong_every: int = 10**9, n_ahead: int = 100, ignore_eos: bool = True
    ) -> None:
        self._backend = backend
        self._wrong_every = wrong_every
        self._ignore_eos = ignore_eos
        self._n_ahead = n_ahead
        self._ahead: dict[int, list[int]] = {}

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        predicted = [self._predict(chunk) for chunk in chunks]
        is_room = all(len(self._ahead[chunk.sequence_id]) <= self._n_ahead for chunk in chunks)
        return predicted if is_room else []

    def _predict(self, chunk: Chunk) -> NDArray[np.float32]:
        computed = self._backend.tokens(chunk.sequence_id)
        if chunk.position == len(computed):
            self._ahead[chunk.sequence_id] = []
        ahead = self._ahead[chunk.sequence_id]
        assert len(chunk.tokens) == chunk.n_logits == 1, "drafts are computed token by token"
        assert chunk.position == len(computed) + len(ahead), "a sequence has no gaps"
        ahead += chunk.tokens
        history = [*computed, *ahead]
        logits = np.zeros(self._backend.facts.n_vocab, np.float32)
        is_wrong = len(history) % self._wrong_every == 0
        logits[_WRONG if is_wrong else self._backend.choose_after(history, "", self._ignore_eos)] = 20.0
        return logits
