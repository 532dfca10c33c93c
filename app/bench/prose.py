"""Text of random words that no server has seen before: it begins differently each time it is asked for.

Owns the random numbers. Sizes are asked for in words or, once calibrated, in tokens of the server's model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from app.bench.client import Client
from app.bench.lexicon import WORDS

__all__ = ["Prose", "calibrated_prose"]

_SENTENCE_WORDS = (8, 14)
_CALIBRATION_WORDS = 400


class Prose:
    """An endless source of sentences, each word of which begins with a space."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.tokens_per_word = 1.0

    def words(self, n_words: int) -> str:
        """Return `n_words` random words in sentences."""
        words: list[str] = []
        while len(words) < n_words:
            words += self.sentence()
        return "".join(words[: n_words - 1]) + words[n_words - 1].rstrip(".") + "."

    def tokens(self, n_tokens: int) -> str:
        """Return text of about `n_tokens` tokens; a handful of tokens is a word or two."""
        return self.words(max(1, round(n_tokens / self.tokens_per_word)))

    def beginning(self, text: str, n_tokens: int) -> str:
        """Return the first words of `text` that make about `n_tokens`, none for 0."""
        return "".join(f" {word}" for word in text.split()[: round(n_tokens / self.tokens_per_word)])

    def sentence(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the words of one sentence, `extra` ones among them, each with the space before it."""
        drawn = [*self._random.choices(WORDS, k=self._random.randint(*_SENTENCE_WORDS)), *extra]
        self._random.shuffle(drawn)
        return [f" {word}" for word in drawn[:-1]] + [f" {drawn[-1]}."]

    def tail(self) -> str:
        """Return a sentence to end a prompt with, so that no two prompts are the same."""
        return "".join(self.sentence())

    def choice(self) -> str:
        """Return one random word."""
        return self._random.choice(WORDS)

    def seed(self) -> int:
        """Return a seed for sampling."""
        return self._random.randrange(2**31)


async def calibrated_prose(client: Client, seed: int) -> Prose:
    """Return prose that knows how many tokens its words have with the model that `client` talks to."""
    prose = Prose(seed)
    answer = await client.complete(prose.words(_CALIBRATION_WORDS), 2, temperature=0.0, ignore_eos=True)
    prose.tokens_per_word = answer.n_prompt / _CALIBRATION_WORDS
    return prose
