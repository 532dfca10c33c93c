"""Drafts that are looked up: in the text of the request itself, and in the texts of earlier requests.

Owns the index of finished texts, which never leaves the process. Independent of which drafts pay.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import MATCH_LENGTH, NO_ESTIMATE, DraftEstimate
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.suffix_index import Draft, SuffixIndex, SuffixReader

__all__ = ["CrossRequestLookup", "PromptLookup"]

N_CONTEXT_TOKENS = 64  # of a text that are read to find its place in another; longer matches add nothing
MAX_INDEXED_TOKENS = 32_768  # of finished texts; each takes about 0.5 kB


class PromptLookup:
    """Drafts from the earlier text of the request itself."""

    name = "prompt lookup"
    evidence = MATCH_LENGTH

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        return sequence.acceptance[self.name].upper_bound(sequence.suffixes().n_matched, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        return 1

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        return [request.sequence.suffixes().propose(request.n_tokens).of_source(self.name) for request in requests]

    def release(self, sequence: Sequence) -> None:
        """Do nothing: the sequence owns its index."""


class _Reading:
    """The place of a sequence in each of the indexes, after its first `n_read` tokens."""

    def __init__(self, n_read: int, indexes: Many[SuffixIndex]) -> None:
        self.n_read = n_read
        self.indexes = tuple(indexes)
        self.readers = [SuffixReader(index) for index in indexes]

    def best(self) -> SuffixReader:
        return max(self.readers, key=lambda reader: reader.n_matched)


class CrossRequestLookup:
    """Drafts from finished sequences of this process: at most `max_tokens` of them, the oldest dropped first.

    Two indexes take turns: when the younger has half of all tokens, the older is dropped. The texts stay in the
    process.
    """

    name = "cross-request lookup"
    evidence = MATCH_LENGTH

    def __init__(self, max_tokens: int = MAX_INDEXED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._indexes: tuple[SuffixIndex, ...] = ()
        self._readings: dict[Sequence, _Reading] = {}

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        if not self._indexes:
            return NO_ESTIMATE
        return sequence.acceptance[self.name].upper_bound(self._reading(sequence).best().n_matched, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        return 1 if self._indexes else 0

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        return [
            self._reading(request.sequence).best().propose(request.n_tokens).of_source(self.name)
            for request in requests
        ]

    def release(self, sequence: Sequence) -> None:
        self._readings.pop(sequence, None)
        if sequence.finish_reason is not None and sequence.n_output:
            # The cached part was indexed when it was computed; a little of it connects the new part to it.
            self._add(sequence.tokens[max(0, sequence.n_cached - N_CONTEXT_TOKENS) :])

    def _reading(self, sequence: Sequence) -> _Reading:
        """Return the place of `sequence` after its newest token."""
        reading = self._readings.get(sequence)
        if reading is None or reading.indexes != self._indexes:
            n_skipped = max(0, len(sequence.tokens) - N_CONTEXT_TOKENS)
            reading = self._readings[sequence] = _Reading(n_skipped, self._indexes)
        new = sequence.tokens[reading.n_read :]
        if new:
            for reader in reading.readers:
                reader.read(new)
            reading.n_read = len(sequence.tokens)
        return reading

    def _add(self, tokens: Many[int]) -> None:
        n_max = self._max_tokens // 2
        if not self._indexes or len(self._indexes[0]) + min(len(tokens), n_max) > n_max:
            self._indexes = (SuffixIndex(), *self._indexes[:1])
        self._indexes[0].extend(tokens[-n_max:])
