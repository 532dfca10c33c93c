"""Answers of a random model that spells: what binds its calls is followed letter by letter; for tests without a model.

A sampler draws a text of each grammar that it is bound by and spells it; while it is free it spells what it is told to,
and behind a call at random the begin of another one.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import lru_cache

from app.engine.grammar.call_rules import BLANKS, CallRules, numbered
from app.engine.loop.call_stages import AnswerVocabulary, CallStages
from tests.app.gbnf_texts import Grammar

END = -1
AGAIN = 0.75  # how often another call follows
MOST_DRAWS = 2000
MOST_LETTERS = 20_000


_read = lru_cache(256)(Grammar)  # each of the random answers to a test's tools is bound by the same texts


class SpellingSampler:
    """Spells `free` while nothing binds it, one letter of it at a time, then ends the answer."""

    def __init__(self, chance: random.Random, free: str = "") -> None:
        self._chance = chance
        self._free = free
        self._next = ""  # behind a call, before what is left of `free`
        self._grammar: Grammar | None = None
        self._text = self._said = ""
        self._may_be_blank = False  # the text may begin with blanks
        self.n_bound = 0

    def sample(self, row: int) -> int:
        if self._grammar is None:
            if self._next:
                letter, self._next = self._next[:1], self._next[1:]
            else:
                letter, self._free = self._free[:1], self._free[1:]
            return ord(letter) if letter else END
        letter = self._text[len(self._said) : len(self._said) + 1]
        self._said += letter
        return ord(letter) if letter else END

    def say(self, text: str) -> None:
        """Spell `text` next, if nothing binds the answer then."""
        self._next = text

    def sample_other(self, row: int, refused: Collection[int]) -> int:
        raise AssertionError("a single letter begins every call")

    def accept(self, token: int) -> None:
        if self._grammar is None:
            return
        self._said += chr(token)
        for _ in range(MOST_DRAWS):
            if self._text.startswith(self._said):
                return
            self._text = self._grammar.sample(self._chance)
            if self._may_be_blank:  # some of many: those of one text are seldom drawn
                blanks = self._said[: len(self._said) - len(self._said.lstrip())]
                self._text = blanks + self._text.lstrip()
        raise AssertionError(f"{self._said!r} is forced and not allowed")

    def bind(self, grammar: str, visible: Collection[int] = ()) -> None:
        self._grammar, self._said = None, ""
        if grammar:
            self._next = ""
            self.n_bound += 1
            self._grammar = _read(grammar)
            self._may_be_blank = f"root ::= {BLANKS}" in grammar
            self._text = self._grammar.sample(self._chance)

    def is_complete(self) -> bool:
        return self._said == self._text

    def close(self) -> None: ...


def letters(text: str) -> list[int]:
    return list(map(ord, text))


def spoken(rules: CallRules, chance: random.Random, free: str = "", closings: Collection[str] = ()) -> str:
    """Return a random answer under `rules` that says `free` where nothing binds it."""
    sampler = SpellingSampler(chance, free)
    vocabulary = AnswerVocabulary(lambda token: chr(token).encode() if token >= 0 else b"", (), letters)
    stages = CallStages(rules, sampler, vocabulary, closings)
    said = ""
    while len(said) < MOST_LETTERS:
        if stages.forced:
            token = stages.forced.popleft()
            sampler.accept(token)
        else:
            token = stages.sample(0)
        n_calls = stages.n_calls
        stages.follow(token)
        is_between = stages.n_calls > n_calls and rules.is_repeated and (rules.begin or rules.last or not rules.goes_on)
        if is_between and chance.random() < AGAIN:
            sampler.say(numbered(f"{rules.between}{chance.choice(rules.heads).text}", stages.n_calls))
        if token == END:
            return said
        said += chr(token)
    raise AssertionError("the answer does not end")
