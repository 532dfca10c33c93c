"""The reasoning of one answer, followed token by token and ended once its budget is used up, or on request. Pure.

It ends at the first end of a sentence or line among the last eighth of its tokens, at most 32; without one after its
last token. It goes on for a few tokens more only to finish a character or a tag that has begun.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from app.engine.request import ReasoningBudget

_MAX_WINDOW_TOKENS = 32  # in which a thought may end early, at the end of a sentence
_WINDOW_SHARE = 8
_MIN_TAIL_BYTES = 8
_SENTENCE_END = re.compile("\n\\s*\\Z|(?<![0-9])[.!?。！？][\"'”)*]{0,2}\\s*\\Z")
_CHARACTER_BYTES = {0b110: 2, 0b1110: 3, 0b11110: 4}  # by the first bits of the first byte


class _Place(Enum):
    BEFORE = 0  # the answer has only what may begin a thought
    INSIDE = 1
    AFTER = 2


class Thought:
    """State of one answer's thought under `budget`. `tokenize` turns the text that ends it into tokens. `observe` each
    sampled token that was not `forced`. The `forced` tokens come next in the answer, whatever the model would sample.
    `n_tokens` were thought; `was_cut` once the thought was ended. After `end` it ends where it is."""

    def __init__(self, budget: ReasoningBudget, tokenize: Callable[[str], Sequence[int]]) -> None:
        self.forced: deque[int] = deque()
        self.n_tokens = 0
        self.was_cut = False
        self._budget = budget
        self._tokenize = tokenize
        self._limit = budget.max_tokens
        self._opening = budget.opening.encode()
        self._closings = tuple(text.encode() for text in budget.closings)
        self._n_tail_bytes = max(_MIN_TAIL_BYTES, *map(len, (self._opening, *self._closings)))
        self._tail = b""
        self._has_text = False
        self._place = _Place.INSIDE if budget.is_open else _Place.BEFORE
        self._end_if_due()

    @property
    def is_running(self) -> bool:
        """Whether the next token belongs to the thought, unless it is forced."""
        return self._place is _Place.INSIDE

    def observe(self, piece: bytes) -> None:
        if self._place is _Place.AFTER and not self._budget.recurs:
            return
        self._tail += piece
        if self._place is _Place.INSIDE:
            self.n_tokens += 1
            self._follow()
        elif self._place is _Place.BEFORE:
            text = self._tail.lstrip()
            if text.startswith(self._opening):
                self._begin(len(self._tail) - len(text) + len(self._opening))
            elif not self._opening.startswith(text):  # the answer begins with something else
                self._place = _Place.AFTER
        elif (index := self._tail.rfind(self._opening)) >= 0:
            self._begin(index + len(self._opening))
        self._tail = self._tail[-self._n_tail_bytes :]

    def end(self) -> None:
        """End the thought as soon as no character is cut, and each one that the answer begins again."""
        self._limit = self.n_tokens if self._limit is None else min(self._limit, self.n_tokens)
        self._end_if_due()

    def _begin(self, end_of_opening: int) -> None:
        self._place = _Place.INSIDE
        self._tail = self._tail[end_of_opening:]
        self._follow()

    def _follow(self) -> None:
        if any(closing in self._tail for closing in self._closings):
            self._place, self._tail = _Place.AFTER, b""
            return
        self._has_text = self._has_text or bool(self._tail.strip())
        self._end_if_due()

    def _end_if_due(self) -> None:
        if self._place is not _Place.INSIDE or self._limit is None:
            return
        n_left = self._limit - self.n_tokens
        n_window = min(_MAX_WINDOW_TOKENS, self._limit // _WINDOW_SHARE)
        if n_left <= -self._n_tail_bytes or (n_left < max(1, n_window) and self._may_end(is_last=n_left <= 0)):
            text = self._budget.ending if not self.was_cut else self._budget.last_ending or self._budget.ending
            conclusion = self._budget.conclusion if self._has_text and not self.was_cut else ""
            self.forced.extend(self._tokenize(conclusion + text))
            self._place, self._tail, self.was_cut = _Place.AFTER, b"", True

    def _may_end(self, *, is_last: bool) -> bool:
        """Return whether the thought may end here; where it `is_last`, in the middle of a sentence too."""
        begins_tag = any(self._tail.endswith(closing[:n]) for closing in self._closings for n in range(1, len(closing)))
        if begins_tag or _is_in_character(self._tail):
            return False
        return is_last or _SENTENCE_END.search(self._tail.decode("utf-8", "replace")) is not None


def _is_in_character(tail: bytes) -> bool:
    """Return whether `tail` ends with a part of a UTF-8 character."""
    for n_bytes, byte in enumerate(reversed(tail[-3:]), start=1):
        if byte >> 6 != 0b10:
            return any(byte >> (7 - n) == bits and n_bytes < n for bits, n in _CHARACTER_BYTES.items())
    return False
