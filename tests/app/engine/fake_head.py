"""A draft head over the fake backend."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend

_WRONG = ord("#")  # never an output of the fake backend


class FakeHead:
    """An `AutoregressiveHead` over `backend`, wrong at one position in `wrong_every`; cells for `n_ahead` tokens."""

    def __init__(
        self, backend: FakeBackend, wrong_every: int = 10**9, n_ahead: int = 100, ignore_eos: bool = True
    ) -> None:
        self._backend = backend
        self._wrong_every = wrong_every
        self._ignore_eos = ignore_eos
        self._n_ahead = n_ahead
        self._lines: dict[int, list[int]] = {}  # by sequence: the tokens that were followed, then those predicted
        self.n_behind = 0  # tokens that no pass has computed
        self._decode, backend.decode = backend.decode, self._follow  # type: ignore[method-assign]

    def _follow(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = self._decode(chunks)
        if status is DecodeStatus.DONE:
            self._lines.update((chunk.sequence_id, self._backend.tokens(chunk.sequence_id)) for chunk in chunks)
        return status

    def n_waiting(self, _sequence_ids: Collection[int]) -> int:
        return self.n_behind

    def catch_up(self, _sequence_ids: Collection[int]) -> None:
        self.n_behind = 0

    def predict(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        self.n_behind = 0
        predicted = [self._predict(chunk) for chunk in chunks]
        n_ahead = max(len(self._lines[chunk.sequence_id]) - self._n_known(chunk.sequence_id) for chunk in chunks)
        return predicted if n_ahead <= self._n_ahead else []

    def _n_known(self, sequence_id: int) -> int:
        return len(self._backend.tokens(sequence_id))

    def _predict(self, chunk: Chunk) -> NDArray[np.float32]:
        computed = self._backend.tokens(chunk.sequence_id)
        line = self._lines.setdefault(chunk.sequence_id, computed)
        if line[: len(computed)] != computed:  # another sequence took the place
            line = self._lines[chunk.sequence_id] = computed
        del line[chunk.position :]  # of a draft that was rejected
        assert len(chunk.tokens) == chunk.n_logits == 1, "drafts are computed token by token"
        assert chunk.position == len(line), "a sequence has no gaps"
        line += chunk.tokens
        logits = np.zeros(self._backend.facts.n_vocab, np.float32)
        is_wrong = len(line) % self._wrong_every == 0
        logits[_WRONG if is_wrong else self._backend.choose_after(line, "", self._ignore_eos)] = 20.0
        return logits
