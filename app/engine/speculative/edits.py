"""Drafts for answers that repeat an earlier part of their text with changes: a name replaced, a line left out.

A suffix match is lost at each change and has to grow anew. Here the place in the earlier text is kept instead: after a
change the answer is expected to join it again a few tokens on, and a replacement that was seen is expected wherever
the same words come up. Knows nothing of what pays.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from app.engine.loop.sequence import Sequence
from app.engine.speculative.acceptance import AGREEMENT, NO_ESTIMATE, DraftEstimate
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.suffix_index import NO_DRAFT, Draft

__all__ = ["EditLookup"]

MIN_FOUND_TOKENS = 6  # of a suffix that occurred before, for its place to count as found
MAX_CHANGE_TOKENS = 12  # on either side of a change; after more of them the place counts as lost
N_SURE_TOKENS = 2  # that agree behind a change, for it to count as understood


@dataclass(frozen=True, slots=True)
class _Change:
    """Tokens of the earlier text, at least one, and what the answer said in their place."""

    old: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Joint:
    """Where an answer that had left at index `left_at`, when `place` was expected, joined again behind a new change."""

    place: int
    left_at: int
    change: _Change


@dataclass(slots=True)
class _Trail:
    """Where an answer is in the earlier text that it follows. `tokens` is the whole text, which grows.

    While it follows, `tokens[place]` is expected next, and `n_agreed` tokens were as expected since the last new
    change. Since it left, at index `left_at`, `place` stays what was expected there.
    """

    tokens: list[int]
    n_read: int
    place: int
    n_agreed: int
    left_at: int | None = None
    doubtful: _Joint | None = None  # the newest one, until enough agrees behind it
    changes: dict[int, list[_Change]] = field(default_factory=dict)  # by their first old token, the newest first

    @property
    def is_lost(self) -> bool:
        return self.left_at is not None and self.n_read - self.left_at > MAX_CHANGE_TOKENS

    def read(self) -> None:
        """Follow the tokens that came since."""
        for index in range(self.n_read, len(self.tokens)):
            self.n_read = index + 1
            if self.left_at is None and not self._agrees(index):
                self._leave(index)
            if self.left_at is not None:
                self._join(index, self.left_at)

    def move(self, place: int, n_agreed: int) -> None:
        """Go on at `place`, where more of the text agrees."""
        self.place, self.n_agreed, self.left_at, self.doubtful = place, n_agreed, None, None

    def ahead(self, n_tokens: int) -> list[int]:
        """Return what is expected next, at most `n_tokens`; nothing while it is not known where the answer is."""
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
        if self.doubtful is not None and self.n_agreed >= N_SURE_TOKENS:
            self._learn(self.doubtful.change)
            self.doubtful = None
        return True

    def _leave(self, index: int) -> None:
        if self.doubtful is not None:
            self.place, self.left_at = self.doubtful.place, self.doubtful.left_at
        else:
            self.left_at = index
        self.n_agreed, self.doubtful = 0, None

    def _join(self, index: int, left_at: int) -> None:
        """Go on behind a change that ends before the token at `index`, the one that leaves out least."""
        if self._expected_change(index + 1) is not None:
            return
        for place in range(self.place, min(self.place + MAX_CHANGE_TOKENS + 1, left_at)):
            if self.tokens[place] == self.tokens[index]:
                change = _Change(tuple(self.tokens[self.place : place]), tuple(self.tokens[left_at:index]))
                is_known = change in self.changes.get(self.tokens[self.place], ())
                self.doubtful = None if is_known else _Joint(self.place, left_at, change)
                self.place, self.left_at = place + 1, None
                self.n_agreed = N_SURE_TOKENS if is_known else 1
                return

    def _learn(self, change: _Change) -> None:
        if change.old:
            known = self.changes.setdefault(change.old[0], [])
            known[:] = [change, *(other for other in known if other.old != change.old)]

    def _expected_change(self, n_tokens: int) -> _Change | None:
        """Return the known change that the first `n_tokens` tokens are in the middle or just at the end of."""
        said = tuple(self.tokens[self.left_at : n_tokens])
        change = self._change_at(self.place)
        return change if change is not None and change.new[: len(said)] == said else None

    def _change_at(self, place: int) -> _Change | None:
        known = self.changes.get(self.tokens[place], ())
        return next((change for change in known if _begins(self.tokens, place, change.old)), None)


class EditLookup:
    """The earlier part of the conversation that an answer repeats with changes."""

    name = "edited text"
    evidence = AGREEMENT

    def __init__(self) -> None:
        self._trails: dict[Sequence, _Trail] = {}

    def estimate(self, sequence: Sequence, n_most: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        trail = self._trail(sequence)
        return NO_ESTIMATE if trail is None else sequence.acceptance[self.name].upper_bound(trail.n_agreed, n_most)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        return int(sequence in self._trails)

    def propose(self, questions: Many[DraftRequest]) -> list[Draft]:
        return [self._draft(question) for question in questions]

    def release(self, sequence: Sequence) -> None:
        self._trails.pop(sequence, None)

    def _draft(self, question: DraftRequest) -> Draft:
        trail = self._trail(question.sequence)
        if trail is None:
            return NO_DRAFT
        tokens = trail.ahead(question.n_tokens)
        return Draft(tuple(tokens), (1.0,) * len(tokens), trail.n_agreed, self.name)

    def _trail(self, sequence: Sequence) -> _Trail | None:
        """Return the trail of `sequence` up to its newest token, None where it repeats nothing."""
        trail = self._trails.get(sequence)
        if trail is not None:
            trail.read()
            if trail.is_lost:
                del self._trails[sequence]
                trail = None
        index = sequence.suffixes()
        if index.n_matched < MIN_FOUND_TOKENS:
            return trail
        if trail is None:
            n_tokens = len(sequence.tokens)
            trail = self._trails[sequence] = _Trail(sequence.tokens, n_tokens, index.n_before, index.n_matched)
        elif index.n_matched > trail.n_agreed + N_SURE_TOKENS:
            trail.move(index.n_before, index.n_matched)
        return trail


def _begins(tokens: list[int], place: int, part: tuple[int, ...]) -> bool:
    return tuple(tokens[place : place + len(part)]) == part
