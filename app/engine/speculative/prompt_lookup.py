"""Drafts that are looked up: in what the conversation itself said, and in what others said to this process before.

Owns the index of finished texts, which never leaves the process. Knows nothing of what pays.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import MATCH_LENGTH, NO_ESTIMATE, DraftEstimate
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.suffix_index import Draft, SuffixIndex, SuffixReader

__all__ = ["CrossRequestLookup", "PromptLookup"]

N_CONTEXT_TOKENS = 64  # of a text that are read to find its place in another; a longer match counts no more
MAX_OTHER_TOKENS = 32_768  # of finished texts; each takes about 0.5 kB


class PromptLookup:
    """What the conversation itself said before."""

    name = "own text"
    evidence = MATCH_LENGTH

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        return sequence.acceptance[self.name].upper_bound(sequence.suffixes().n_matched, n_most)

    def n_probe_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        return 1

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        return [question.sequence.suffixes().propose(question.n_tokens).named(self.name) for question in questions]

    def release(self, sequence: Sequence) -> None:
        """Nothing is held: the sequence owns its index."""


class _Reading:
    """How far a sequence was read, and where it stands in each of the indexes."""

    def __init__(self, n_read: int, indexes: Many[SuffixIndex]) -> None:
        self.n_read = n_read
        self.indexes = tuple(indexes)
        self.readers = [SuffixReader(index) for index in indexes]

    def best(self) -> SuffixReader:
        return max(self.readers, key=lambda reader: reader.n_matched)


class CrossRequestLookup:
    """What finished sequences of this process said: at most `max_tokens` of them, the oldest forgotten first.

    Two indexes take turns: when the younger is half of all, the older is dropped. Nothing of it leaves the process.
    """

    name = "other texts"
    evidence = MATCH_LENGTH

    def __init__(self, max_tokens: int = MAX_OTHER_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._indexes: tuple[SuffixIndex, ...] = ()
        self._readings: dict[Sequence, _Reading] = {}

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        if not self._indexes:
            return NO_ESTIMATE
        return sequence.acceptance[self.name].upper_bound(self._reading(sequence).best().n_matched, n_most)

    def n_probe_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        return 1 if self._indexes else 0

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        return [
            self._reading(question.sequence).best().propose(question.n_tokens).named(self.name)
            for question in questions
        ]

    def release(self, sequence: Sequence) -> None:
        self._readings.pop(sequence, None)
        if sequence.finish_reason is not None and sequence.n_output:
            # What came from the cache was indexed when it was computed; a little of it joins it to what is new.
            self._add(sequence.tokens[max(0, sequence.n_cached - N_CONTEXT_TOKENS) :])

    def _reading(self, sequence: Sequence) -> _Reading:
        """Return where `sequence` stands with its newest token."""
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
        n_most = self._max_tokens // 2
        if not self._indexes or len(self._indexes[0]) + min(len(tokens), n_most) > n_most:
            self._indexes = (SuffixIndex(), *self._indexes[:1])
        self._indexes[0].extend(tokens[-n_most:])
