"""Drafts that are looked up: in the text of the request itself, also where an answer changes it, and in earlier texts.

Owns the index of finished texts, which never leaves the process. Independent of which drafts pay.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import AGREEMENT, MATCH_LENGTH, NO_ESTIMATE, DraftEstimate
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.suffix_index import NO_DRAFT, Draft, SuffixIndex, SuffixReader

N_CONTEXT_TOKENS = 64  # of a text that are read to find its place in another; longer matches add nothing
MAX_INDEXED_TOKENS = 32_768  # of finished texts; each takes about 0.5 kB
MIN_FOUND_TOKENS = 6  # of a suffix that occurred before, to count its place as found
MAX_CHANGE_TOKENS = 12  # on either side of a change; after more the place counts as lost
N_SURE_TOKENS = 2  # that agree after a change, to count it as understood


class PromptLookup:
    """Drafts from the earlier text of the request itself."""

    name = "prompt lookup"
    evidence = MATCH_LENGTH

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        return sequence.drafting.acceptance[self.name].upper_bound(sequence.suffixes().n_matched, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        return 1

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        return [request.sequence.suffixes().propose(request.n_tokens).of_source(self.name) for request in requests]

    def release(self, sequence: Sequence) -> None:
        """Do nothing: the sequence owns its index."""


_MAX_OWNERS = 4  # whose texts are kept: each takes as much memory as all do where there is one


class _Reading:
    """The place of a sequence in each of the indexes, after its first `n_read` tokens."""

    def __init__(self, n_read: int, indexes: Many[SuffixIndex]) -> None:
        self.n_read = n_read
        self.indexes = tuple(indexes)
        self.readers = [SuffixReader(index) for index in indexes]

    def best(self) -> SuffixReader:
        return max(self.readers, key=lambda reader: reader.n_matched)


class CrossRequestLookup:
    """Drafts from finished sequences of the same owner in this process: at most `max_tokens` of them, the oldest
    dropped first. Two indexes take turns: when the younger has half of all tokens, the older is dropped. Those of a
    few owners are kept. The texts stay in the process."""

    name = "cross-request lookup"
    evidence = MATCH_LENGTH

    def __init__(self, max_tokens: int = MAX_INDEXED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._indexes: dict[str, tuple[SuffixIndex, ...]] = {}  # by owner, the one whose answer ended last at the end
        self._readings: dict[Sequence, _Reading] = {}

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        if not self._of(sequence):
            return NO_ESTIMATE
        return sequence.drafting.acceptance[self.name].upper_bound(self._reading(sequence).best().n_matched, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        return 1 if self._of(sequence) else 0

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        return [
            self._reading(request.sequence).best().propose(request.n_tokens).of_source(self.name)
            for request in requests
        ]

    def release(self, sequence: Sequence) -> None:
        self._readings.pop(sequence, None)
        if sequence.finish_reason is not None and sequence.n_output:
            # The cached part was indexed when it was computed; a little of it connects the new part to it.
            tokens = sequence.tokens[max(0, sequence.n_cached - N_CONTEXT_TOKENS) :]
            n_max, indexes = self._max_tokens // 2, self._of(sequence)
            if not indexes or len(indexes[0]) + min(len(tokens), n_max) > n_max:
                indexes = (SuffixIndex(), *indexes[:1])  # a suffix automaton cannot forget single texts
            indexes[0].extend(tokens[-n_max:])
            self._indexes.pop(sequence.request.owner, None)
            self._indexes[sequence.request.owner] = indexes
            if len(self._indexes) > _MAX_OWNERS:
                del self._indexes[next(iter(self._indexes))]

    def clear(self) -> None:
        self._indexes = {}
        self._readings.clear()

    def _of(self, sequence: Sequence) -> tuple[SuffixIndex, ...]:
        return self._indexes.get(sequence.request.owner, ())

    def _reading(self, sequence: Sequence) -> _Reading:
        reading, indexes = self._readings.get(sequence), self._of(sequence)
        if reading is None or reading.indexes != indexes:
            n_skipped = max(0, len(sequence.tokens) - N_CONTEXT_TOKENS)
            reading = self._readings[sequence] = _Reading(n_skipped, indexes)
        new = sequence.tokens[reading.n_read :]
        if new:
            for reader in reading.readers:
                reader.read(new)
            reading.n_read = len(sequence.tokens)
        return reading


@dataclass(frozen=True, slots=True)
class _Change:
    """Tokens of the earlier text, at least one, and the tokens of the answer in their place."""

    old: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Rejoin:
    """A new change after which an answer rejoined the earlier text; it had left at index `left_at`, from `place`."""

    place: int
    left_at: int
    change: _Change


@dataclass(slots=True)
class _Tracker:
    """The place of an answer in the earlier text that it repeats. `tokens` is the whole text, which grows. While it
    repeats, `tokens[place]` is expected next, and `n_agreed` tokens were as expected since the last new change. After
    it left, at index `left_at`, `place` stays the one expected there."""

    tokens: list[int]
    n_read: int
    place: int
    n_agreed: int
    left_at: int | None = None
    uncertain: _Rejoin | None = None  # the newest one, until enough tokens agree after it
    changes: dict[int, list[_Change]] = field(default_factory=dict)  # by their first old token, the newest first

    def read(self) -> None:
        """Advance by the tokens added since."""
        for index in range(self.n_read, len(self.tokens)):
            self.n_read = index + 1
            if self.left_at is None and not self._agrees(index):
                self.left_at = index
                if self.uncertain is not None:  # it had not rejoined the earlier text there: it is still where it left
                    self.place, self.left_at = self.uncertain.place, self.uncertain.left_at
                self.n_agreed, self.uncertain = 0, None
            if self.left_at is not None:
                self._join(index, self.left_at)

    def move(self, place: int, n_agreed: int) -> None:
        """Continue at `place`, where more of the text agrees."""
        self.place, self.n_agreed, self.left_at, self.uncertain = place, n_agreed, None, None

    def ahead(self, n_tokens: int) -> list[int]:
        """Return at most `n_tokens` that are expected next; none while the place is unknown."""
        expected: list[int] = []
        place = self.place
        if self.left_at is not None:
            change = self._expected_change(self.n_read)
            if change is None:
                return []
            expected += change.new[self.n_read - self.left_at :]
            place += len(change.old)
        while len(expected) < n_tokens and place < len(self.tokens):
            change = self._change_at(place)
            expected += change.new if change else self.tokens[place : place + 1]
            place += len(change.old) if change else 1
        return expected[:n_tokens]

    def _agrees(self, index: int) -> bool:
        if self.tokens[self.place] != self.tokens[index]:
            return False
        self.place += 1
        self.n_agreed += 1
        if self.uncertain is not None and self.n_agreed >= N_SURE_TOKENS:
            if (change := self.uncertain.change).old:  # what is only inserted has no words to be expected at
                known = self.changes.setdefault(change.old[0], [])
                known[:] = [change, *(other for other in known if other.old != change.old)]
            self.uncertain = None
        return True

    def _join(self, index: int, left_at: int) -> None:
        """Continue after a change that ends before the token at `index`, the one that skips least."""
        if self._expected_change(index + 1) is not None:
            return
        for place in range(self.place, min(self.place + MAX_CHANGE_TOKENS + 1, left_at)):
            if self.tokens[place] == self.tokens[index]:
                change = _Change(tuple(self.tokens[self.place : place]), tuple(self.tokens[left_at:index]))
                is_known = change in self.changes.get(self.tokens[self.place], ())
                self.uncertain = None if is_known else _Rejoin(self.place, left_at, change)
                self.place, self.left_at = place + 1, None
                self.n_agreed = N_SURE_TOKENS if is_known else 1
                return

    def _expected_change(self, n_tokens: int) -> _Change | None:
        """Return the known change that the first `n_tokens` tokens are inside of or at the end of."""
        replaced = tuple(self.tokens[self.left_at : n_tokens])
        change = self._change_at(self.place)
        return change if change is not None and change.new[: len(replaced)] == replaced else None

    def _change_at(self, place: int) -> _Change | None:
        known = self.changes.get(self.tokens[place], ())
        tokens = self.tokens
        return next((change for change in known if tuple(tokens[place : place + len(change.old)]) == change.old), None)


class EditLookup:
    """Drafts from the earlier part of the text that an answer repeats with changes: a name replaced, a line left out. A
    suffix match is lost at each change and has to grow again. An edit lookup remembers the place in the earlier text
    instead: after a change it expects the answer to return to that text a few tokens later, and it expects a
    replacement again wherever the same words occur."""

    name = "edit lookup"
    evidence = AGREEMENT

    def __init__(self) -> None:
        self._trackers: dict[Sequence, _Tracker] = {}

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        tracker = self._tracker(sequence)
        if tracker is None:
            return NO_ESTIMATE
        return sequence.drafting.acceptance[self.name].upper_bound(tracker.n_agreed, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        return int(sequence in self._trackers)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        drafts = []
        for request in requests:
            tracker = self._tracker(request.sequence)
            if tracker is None:
                drafts.append(NO_DRAFT)
                continue
            tokens = tuple(tracker.ahead(request.n_tokens))
            drafts.append(Draft(tokens, (1.0,) * len(tokens), tracker.n_agreed, self.name))
        return drafts

    def release(self, sequence: Sequence) -> None:
        self._trackers.pop(sequence, None)

    def _tracker(self, sequence: Sequence) -> _Tracker | None:
        """Return the tracker of `sequence` at its newest token, None if it repeats nothing."""
        tracker = self._trackers.get(sequence)
        if tracker is not None:
            tracker.read()
            if tracker.left_at is not None and tracker.n_read - tracker.left_at > MAX_CHANGE_TOKENS:  # it is lost
                del self._trackers[sequence]
                tracker = None
        index = sequence.suffixes()
        if index.n_matched < MIN_FOUND_TOKENS:
            return tracker
        if tracker is None:
            n_tokens = len(sequence.tokens)
            tracker = self._trackers[sequence] = _Tracker(sequence.tokens, n_tokens, index.first_end, index.n_matched)
        elif index.n_matched > tracker.n_agreed + N_SURE_TOKENS:
            tracker.move(index.first_end, index.n_matched)
        return tracker
