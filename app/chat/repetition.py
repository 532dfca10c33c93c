"""Notices when an answer repeats itself without end: a small model at a high temperature may go on for thousands of
tokens. Pure and incremental; whoever shows the answer says it, and the person stops it.

An answer loops when its end is one text several times over. Numbers and bullets at the beginning of lines do not count,
as a loop may go on counting. What repeats lawfully is shorter than what is called a loop: rulers, tables, lists, data
and boilerplate in code, a refrain.
"""

from __future__ import annotations

import re

_N_REPEATS = 5
# How many characters a loop has at least, by what repeats.
_LEAST_OF_SENTENCES = 800  # about 200 tokens
_LEAST_OF_WORDS = 2400  # of fewer letters, in code and in tables
_LEAST_OF_SIGNS = 4800
_SENTENCE_LETTERS = 12
_TAIL_CHARACTERS = 6000
_NEEDLE_CHARACTERS = 48
_CHECKED_CHARACTERS = 64  # between two looks
_MARKER = re.compile(r"^[ \t]*(?:\d{1,6}[.):]|[-*•])[ \t]+", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_LETTER = re.compile(r"[^\W\d_]")


class RepetitionDetector:
    """Takes an answer piece by piece."""

    def __init__(self) -> None:
        self._tail = ""
        self._n_unchecked = 0
        self._is_in_code = False
        self._line = ""  # the beginning of a line that is not over yet
        self._has_fired = False

    def feed(self, text: str) -> bool:
        """Return whether the answer repeats itself with `text` at its end, once: after that always False."""
        if self._has_fired or not text:
            return False
        whole, newline, rest = (self._line + text).rpartition("\n")
        self._line = rest
        if newline and len(_FENCE.findall(whole)) % 2:
            self._is_in_code = not self._is_in_code
        self._tail = (self._tail + text)[-_TAIL_CHARACTERS:]
        self._n_unchecked += len(text)
        if self._n_unchecked < _CHECKED_CHARACTERS:
            return False
        self._n_unchecked = 0
        self._has_fired = self._is_looping()
        return self._has_fired

    def _is_looping(self) -> bool:
        tail = _MARKER.sub("", self._tail)
        needle = tail[-_NEEDLE_CHARACTERS:]
        before = tail.rfind(needle, 0, len(tail) - 1)
        if before < 0 or len(needle) < _NEEDLE_CHARACTERS:
            return False
        period = len(tail) - _NEEDLE_CHARACTERS - before
        unit = tail[-period:]
        if len(tail) < period * _N_REPEATS or not tail.endswith(unit * _N_REPEATS):
            return False
        n_repeats = _N_REPEATS
        while tail.endswith(unit, 0, len(tail) - n_repeats * period):
            n_repeats += 1
        return n_repeats * period >= self._least_characters(unit)

    def _least_characters(self, unit: str) -> int:
        n_letters = len(_LETTER.findall(unit))
        if not n_letters and not any(map(str.isdigit, unit)):
            return _LEAST_OF_SIGNS
        is_sentence = n_letters >= _SENTENCE_LETTERS and not self._is_in_code and "|" not in unit
        return _LEAST_OF_SENTENCES if is_sentence else _LEAST_OF_WORDS
