"""Quoted parts of a prompt: in them the text of a special token stays text, so that nobody who is quoted can end a turn
or begin one. Pure.

A prompt is cut only around a quoted part that has such text: any other is tokenized as a whole, as in training.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

Spans: TypeAlias = tuple[tuple[int, int], ...]  # begin and end of each part, in characters, in order


class Vocabulary(Protocol):
    """What is needed of a model's vocabulary; see `app.engine.backend.Backend`."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """Return the bytes of `token`, none for a special token."""


def spans_within(spans: Iterable[tuple[int, int]], begin: int, end: int) -> Spans:
    """Return what of `spans` is between `begin` and `end`, counted from `begin`."""
    clipped = ((max(first, begin) - begin, min(last, end) - begin) for first, last in spans)
    return tuple((first, last) for first, last in clipped if first < last)


def quoted_tokens(text: str, spans: Spans, add_special: bool, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of `text`, in which special tokens are parsed but in the quoted `spans`."""
    as_text = {(begin, end): _tokens_as_text(text[begin:end], vocabulary) for begin, end in spans}
    hostile = [(span, tokens) for span, tokens in as_text.items() if tokens is not None]
    if not hostile:
        return vocabulary.tokenize(text, add_special, True)
    tokens, place = [], 0
    for (begin, end), quoted in hostile:
        if begin > place or not place:
            tokens += vocabulary.tokenize(text[place:begin], add_special and not place, True)
        tokens += quoted
        place = end
    return tokens + (vocabulary.tokenize(text[place:], False, True) if place < len(text) else [])


def _tokens_as_text(text: str, vocabulary: Vocabulary) -> list[int] | None:
    """Return the tokens of a quoted part in which no special token is parsed, None where there is none to parse."""
    parsed = vocabulary.tokenize(text, False, True)
    if all(vocabulary.piece(token) for token in set(parsed)):
        return None
    tokens = vocabulary.tokenize(text, False, False)  # an unknown character has no bytes either
    return tokens if tokens != parsed else None
