"""Positions of sequences with pictures in models with M-RoPE: a picture's tokens share one position in time. Pure.

The engine counts tokens; llama.cpp knows a token by its position, which such a picture moves on by fewer than it has
tokens. Owns the translation between the two and its form in a saved state. Independent of native memory.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from app.engine.backend import State

_COUNTS = struct.Struct("<II")  # of pictures, and of the sequence's tokens
_SPAN = struct.Struct("<IIII")


class _Span(NamedTuple):
    """`n_tokens` from number `begin` on, all at `position`; the next token is at `position` + `n_positions`."""

    begin: int
    n_tokens: int
    position: int
    n_positions: int

    @property
    def end(self) -> int:
        return self.begin + self.n_tokens


class PositionMap:
    """The pictures of each sequence that has any. In all other sequences a token's position is its number."""

    def __init__(self) -> None:
        self._spans: dict[int, list[_Span]] = {}
        self._n_tokens: dict[int, int] = {}  # of sequences with pictures

    def length(self, sequence_id: int) -> int | None:
        """Return how many tokens a sequence with pictures has, None for any other."""
        return self._n_tokens.get(sequence_id)

    def position(self, sequence_id: int, n_tokens: int) -> int:
        """Return the position of the token after the first `n_tokens`; within a picture that of its begin."""
        for span in reversed(self._spans.get(sequence_id, ())):
            if n_tokens >= span.end:
                return span.position + span.n_positions + n_tokens - span.end
            if n_tokens > span.begin:
                return span.position
        return n_tokens

    def n_tokens(self, sequence_id: int, position: int) -> int:
        """Return how many tokens of a sequence lie before `position`."""
        for span in reversed(self._spans.get(sequence_id, ())):
            if position > span.position:
                return span.end + max(0, position - span.position - span.n_positions)
        return position

    def n_whole(self, sequence_id: int, n_tokens: int) -> int:
        """Return `n_tokens`, or the begin of the picture that they would cut in two."""
        inside = (span.begin for span in self._spans.get(sequence_id, ()) if span.begin < n_tokens < span.end)
        return next(inside, n_tokens)

    def computed(self, sequence_id: int, end: int) -> None:
        """Note that the sequence has `end` tokens now."""
        if sequence_id in self._n_tokens:
            self._n_tokens[sequence_id] = end

    def add(self, sequence_id: int, begin: int, n_tokens: int, n_positions: int) -> None:
        """Note that a picture of `n_tokens` begins after the first `begin` tokens."""
        span = _Span(begin, n_tokens, self.position(sequence_id, begin), n_positions)
        self._spans.setdefault(sequence_id, []).append(span)
        self._n_tokens[sequence_id] = begin

    def truncate(self, sequence_id: int, n_tokens: int) -> None:
        """Note that only the first `n_tokens` are left."""
        if sequence_id not in self._n_tokens:
            return
        self._spans[sequence_id] = [span for span in self._spans[sequence_id] if span.begin < n_tokens]
        self._n_tokens[sequence_id] = n_tokens
        if not self._spans[sequence_id]:
            del self._spans[sequence_id], self._n_tokens[sequence_id]

    def share(self, source_id: int, target_id: int, end: int) -> None:
        """Note that `target_id` has the first `end` tokens of `source_id`, and of its own what it had after them."""
        source = [span for span in self._spans.get(source_id, ()) if span.begin < end]
        own = [span for span in self._spans.get(target_id, ()) if span.begin >= end]
        n_tokens = max(end, self._n_tokens.get(target_id, 0))
        self.forget(target_id)
        if source or own:
            self._spans[target_id], self._n_tokens[target_id] = [*source, *own], n_tokens

    def copy(self, source_id: int, target_id: int) -> None:
        """Note that `target_id` is a copy of the whole of `source_id`."""
        self.forget(target_id)
        if source_id in self._n_tokens:
            self._spans[target_id] = list(self._spans[source_id])
            self._n_tokens[target_id] = self._n_tokens[source_id]

    def forget(self, sequence_id: int) -> None:
        """Note that the sequence is empty."""
        self._spans.pop(sequence_id, None)
        self._n_tokens.pop(sequence_id, None)

    def encode(self, sequence_id: int) -> bytes:
        """Return the pictures of a sequence as bytes, for the begin of its saved state."""
        spans = self._spans.get(sequence_id, [])
        head = _COUNTS.pack(len(spans), self._n_tokens.get(sequence_id, 0))
        return head + b"".join(_SPAN.pack(*span) for span in spans)

    def decode(self, sequence_id: int, state: State) -> int:
        """Give a sequence the pictures at the begin of `state`; return how many bytes they took."""
        view = memoryview(state)
        n_spans, n_tokens = _COUNTS.unpack_from(view)
        begin = _COUNTS.size
        end: int = begin + n_spans * _SPAN.size
        self.forget(sequence_id)
        if n_spans:
            self._spans[sequence_id] = [_Span(*values) for values in _SPAN.iter_unpack(view[begin:end])]
            self._n_tokens[sequence_id] = n_tokens
        return end
