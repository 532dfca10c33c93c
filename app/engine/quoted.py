"""Quoted parts of a prompt: in them the text of a special token stays text, so that nobody who is quoted can end a turn
or begin one. Pure.

A prompt is cut only around a quoted part that has such text: any other is tokenized as a whole, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

__all__ = ["Spans", "quoted_tokens", "spans_within"]

Spans: TypeAlias = tuple[tuple[int, int], ...]  # begin and end of each part, in characters, in order
Tokenize: TypeAlias = Callable[[str, bool, bool], list[int]]  # text, add_special, parse_special


def spans_within(spans: Iterable[tuple[int, int]], begin: int, end: int) -> Spans:
    """Return what of `spans` is between `begin` and `end`, counted from `begin`."""
    clipped = ((max(first, begin) - begin, min(last, end) - begin) for first, last in spans)
    return tuple((first, last) for first, last in clipped if first < last)


def quoted_tokens(text: str, spans: Spans, add_special: bool, tokenize: Tokenize) -> list[int]:
    """Return the tokens of `text`, in which special tokens are parsed but in the quoted `spans`."""
    hostile = [span for span in spans if _has_special(text[slice(*span)], tokenize)]
    if not hostile:
        return tokenize(text, add_special, True)
    tokens, place = [], 0
    for begin, end in hostile:
        if begin > place or not place:
            tokens += tokenize(text[place:begin], add_special and not place, True)
        tokens += tokenize(text[begin:end], False, False)
        place = end
    return tokens + (tokenize(text[place:], False, True) if place < len(text) else [])


def _has_special(text: str, tokenize: Tokenize) -> bool:
    return tokenize(text, False, True) != tokenize(text, False, False)
