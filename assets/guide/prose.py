"""Natural-looking text to copy and to edit, made from a grammar and word lists.

Owns the sentence patterns; the words are in corpus/words.toml. Independent of tokens or of tasks.
"""

from __future__ import annotations

import random
import re
import tomllib
from functools import cache

from assets.guide.topics import CORPUS, expand

INVENTED_SLOTS = ("noun", "verb", "adjective", "name", "place")
ENDINGS = ("", "", "n", "r", "s", "l", "t", "ck", "ng", "x", "m", "th", "rd")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the word lists and sentence patterns by name."""
    lists = tomllib.loads((CORPUS / "words.toml").read_text(encoding="utf-8"))
    return {name: tuple(value.split() if isinstance(value, str) else value) for name, value in lists.items()}


def invented_word(rng: random.Random) -> str:
    """Return a pronounceable word that means nothing, so that only copying gets it right."""
    return "".join(rng.choice(words()["syllable"]) for _ in range(rng.randint(1, 4))) + rng.choice(ENDINGS)


def sentence(rng: random.Random, strangeness: float = 0.06) -> str:
    """Return one sentence; strangeness is the share of invented words among its nouns, verbs and adjectives."""
    text = expand(rng.choice(words()["patterns"]), rng)
    text = re.sub(r"\{(\w+)\}", lambda slot: _fill(slot[1], rng, strangeness), text)
    return text[0].upper() + text[1:]


def paragraph(rng: random.Random, n_sentences: int) -> str:
    """Return sentences in a row, now and then with a line break between them."""
    strangeness = rng.choice((0.0, 0.06, 0.35))
    parts = [sentence(rng, strangeness) for _ in range(n_sentences)]
    breaks = [rng.choices((" ", "\n", "\n\n"), (12, 1, 1))[0] for _ in parts[1:]]
    return "".join(part + gap for part, gap in zip(parts, [*breaks, ""], strict=True))


def random_words(rng: random.Random, n_words: int) -> str:
    """Return words, names, numbers and marks in no order."""
    return " ".join(_any_word(rng) for _ in range(n_words))


def _fill(slot: str, rng: random.Random, strangeness: float = 0.0) -> str:
    if slot == "number":
        return str(rng.choice((rng.randint(2, 20), rng.randint(20, 999), rng.randint(1000, 99999))))
    if slot in INVENTED_SLOTS and rng.random() < strangeness:
        word = invented_word(rng)
        return word.capitalize() if slot in ("name", "place") else word
    return rng.choice(words()[slot])


def _any_word(rng: random.Random) -> str:
    kind = rng.choices(("noun", "verb", "adjective", "name", "number", "invented", "mixed"), (4, 3, 3, 2, 1, 3, 1))[0]
    if kind == "invented":
        word = invented_word(rng)
    elif kind == "mixed":
        word = "".join(
            rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789_-./:#éüñ中文") for _ in range(rng.randint(2, 9))
        )
    else:
        word = _fill(kind, rng)
    shape = rng.random()
    return (
        word.capitalize()
        if shape < 0.12
        else word.upper()
        if shape < 0.15
        else word + rng.choice(",.;:!?)")
        if shape < 0.22
        else word
    )
