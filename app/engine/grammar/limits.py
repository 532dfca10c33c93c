"""What of a GBNF text would hurt llama.cpp, which reads it in the process of the model. Pure.

Owns the limits of rules, nesting and repetitions, and as much of the syntax as they take. Whether the text is valid is
for llama.cpp to say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from app.protocol.errors import RequestError

MAX_DEPTH = 100  # of groups: llama.cpp's parser is recursive
MAX_RULES = 1000
MAX_TIMES = 2000  # llama.cpp takes more for any number, and would let through what the grammar excludes
# It writes every repetition out: 16 bytes for each element, 220 for each that may be missing.
MAX_WRITTEN_OUT = 500_000

_WORD = re.compile(
    r""""(?:\\.|[^"\\])*+"|\[(?:\\.|[^\]\\])*+\]|<[^>]*+>|#[^\r\n]*+|[\w-]++|\S""", re.DOTALL
)  # a text, characters, a token, a comment, a name or number, a sign
_NUMBERED = re.compile(r"\\[uU]([0-9a-fA-F]{4}|[0-9a-fA-F]{8})")
_ELEMENT = re.compile(r"\\x..|\\u.{4}|\\U.{8}|\\.|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Repetition:
    """`{least,most}` after something of `n_elements`; without end, `most` is None."""

    n_elements: int
    least: str
    most: str | None

    @property
    def times(self) -> int:
        return int(self.most if self.most is not None else self.least)


def check_grammar(grammar: str) -> None:
    """Raise RequestError for a GBNF text that would overflow llama.cpp's parser, its stack or the memory.

    SamplingParams limits its size.
    """
    n_rules = grammar.count("::=")
    if n_rules > MAX_RULES:
        raise RequestError(f"The grammar has {n_rules} rules.", f"Use at most {MAX_RULES}.")
    _check_depth(grammar)
    if "\0" in grammar or any(0xD800 <= ord(character) < 0xE000 for character in grammar):
        raise RequestError("The grammar contains a NUL or a lone surrogate.", "Remove it.")
    if escape := next(_escapes_of_no_character(grammar), ""):
        raise RequestError(f"The grammar contains {escape}, which is no character.", "Remove it.")
    n_written_out = 0
    for repetition in _repetitions(grammar):
        _check_repetition(repetition)
        n_written_out += repetition.n_elements * repetition.times
    if n_written_out > MAX_WRITTEN_OUT:
        cause = f"The grammar's repetitions amount to {n_written_out:,} characters and rules."
        raise RequestError(cause, f"Use at most {MAX_WRITTEN_OUT:,}, or * and +, which need no copies.")


def _escapes_of_no_character(grammar: str) -> Iterator[str]:
    """Yield the escapes of halves of pairs and of numbers beyond Unicode: no text has what they would force."""
    for word in _WORD.findall(grammar):
        for element in _ELEMENT.findall(word) if word[0] in '"[' else ():
            number = _NUMBERED.fullmatch(element)
            if number and not _is_character(int(number[1], 16)):
                yield element


def _is_character(number: int) -> bool:
    return number < 0xD800 or 0xE000 <= number <= sys.maxunicode


def _check_depth(grammar: str) -> None:
    depth = 0
    for word in _WORD.findall(grammar):
        depth += (word == "(") - (word == ")")
        if depth > MAX_DEPTH:
            raise RequestError("The grammar is nested too deeply.", f"Use at most {MAX_DEPTH} nested groups.")


def _check_repetition(repetition: _Repetition) -> None:
    numbers = [number for number in (repetition.least, repetition.most) if number is not None]
    if any(len(number) > len(str(MAX_TIMES)) or int(number) > MAX_TIMES for number in numbers):
        raise RequestError("The grammar repeats something too often.", f"Use at most {MAX_TIMES:,} times, or no end.")
    if int(numbers[-1]) < int(numbers[0]):
        shown = f"{{{','.join(numbers)}}}"
        raise RequestError(f"The grammar repeats something {shown} times.", "Name the smaller number first.")


def _repetitions(grammar: str) -> Iterator[_Repetition]:
    """Yield the repetitions with numbers, but for malformed ones, which llama.cpp refuses."""
    words = (word for word in _WORD.findall(grammar) if not word.startswith("#"))
    n_elements = 1
    for word in words:
        if word != "{":
            n_elements = _n_elements(word, n_elements)
            continue
        inside = list(takewhile(lambda word: word != "}", words))
        numbers = [number for number in inside if number.isascii() and number.isdigit()]
        if not numbers:
            continue
        if inside == numbers[:1]:
            yield _Repetition(n_elements, inside[0], inside[0])
        elif inside == [*numbers[:1], ",", *numbers[1:2]]:
            yield _Repetition(n_elements, numbers[0], numbers[1] if numbers[1:] else None)
        else:
            continue
        n_elements *= max(1, int(numbers[-1]))  # as the whole is repeated by the next one


def _n_elements(word: str, n_before: int) -> int:
    """Return what a repetition after `word` repeats: a text or characters by each, a group or a rule as one."""
    if word in "*+?":
        return n_before
    return len(_ELEMENT.findall(word[1:-1])) if word[0] in '"[' else 1
