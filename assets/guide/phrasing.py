"""Questions as people type them: other words, words left out, greetings, slips of the finger.

Owns those changes; the word lists are in corpus/phrasing.toml. Independent of topics.
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass
from functools import cache

from assets.guide.topics import CORPUS

WORD = re.compile(r"[A-Za-z]+")
ENDINGS = ("?", "?", "?", "", "", ".", " please?")


@dataclass(frozen=True, slots=True)
class Phrasing:
    """The word lists: openings, words that may be left out, and the synonyms of words."""

    openings: tuple[str, ...]
    small_words: frozenset[str]
    synonyms: dict[str, tuple[str, ...]]


@cache
def _phrasing() -> Phrasing:
    lists = tomllib.loads((CORPUS / "phrasing.toml").read_text(encoding="utf-8"))
    synonyms = {word: tuple(row.split()) for row in lists["synonyms"] for word in row.split()}
    return Phrasing(tuple(lists["openings"]), frozenset(lists["small_words"].split()), synonyms)


def disturb(question: str, rng: random.Random) -> str:
    """Return the question as one of many people might type it."""
    if rng.random() < 0.4:
        question = _with_other_words(question, rng)
    if rng.random() < 0.15:
        question = _without_a_small_word(question, rng)
    if rng.random() < 0.2:
        question = rng.choice(_phrasing().openings) + question
    if rng.random() < 0.1 and len(question) > 12:
        question = _with_a_slip(question, rng)
    if rng.random() < 0.6:
        question = question[:1].upper() + question[1:]
    if rng.random() < 0.25:
        question = re.sub(r"\bi\b", "I", question)
    return question + rng.choice(ENDINGS)


def _with_other_words(question: str, rng: random.Random) -> str:
    synonyms = _phrasing().synonyms
    return WORD.sub(lambda word: rng.choice(synonyms.get(word[0], (word[0],))), question)


def _without_a_small_word(question: str, rng: random.Random) -> str:
    small = [word for word in WORD.finditer(question) if word[0] in _phrasing().small_words]
    if not small:
        return question
    word = rng.choice(small)
    return (question[: word.start()] + question[word.end() :].lstrip()).strip() or question


def _with_a_slip(question: str, rng: random.Random) -> str:
    """Swap, drop or double one letter."""
    at = rng.randrange(1, len(question) - 2)
    first, second = question[at], question[at + 1]
    return question[:at] + rng.choice((second + first, first, first * 2 + second)) + question[at + 2 :]
