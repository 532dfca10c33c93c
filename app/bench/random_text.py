"""Random English text for prompts, different at every call, so that no server has it in its cache.

Owns the words (synthetic tokenizers have each of them as one token) and the random numbers. Sizes are in words or, once
measured, in tokens of the server's model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from app.bench.client import BenchClient

__all__ = ["WORDS", "RandomText", "measured_text"]

WORDS: tuple[str, ...] = tuple(
    """
    the and with from into about after before under over near between through across behind beside against along around
    said asked told wrote read found made took gave kept held left moved turned walked opened closed carried followed
    watched waited worked played called showed brought started stopped finished counted measured painted planted
    repaired sailed climbed crossed gathered answered borrowed promised noticed remembered explained discovered
    river mountain valley forest meadow island harbour bridge village market station garden orchard mill tower castle
    kitchen library school hospital theatre museum workshop factory office window door floor roof wall corner street
    road path field stone water fire wind rain snow storm cloud summer winter autumn spring morning evening night day
    hour minute week month year season moment story letter book paper picture map song dance dinner breakfast bread
    butter cheese apple pear cherry potato onion carrot sugar salt pepper coffee tea milk honey bottle basket bucket
    hammer ladder rope wheel engine wagon boat ship train horse dog cat bird fish wolf bear fox deer mouse sheep goat
    teacher doctor farmer sailor soldier painter singer writer driver hunter keeper merchant neighbour stranger
    brother sister mother father cousin uncle aunt child friend captain judge clerk nurse tailor cook guard king queen
    red green blue yellow white black brown grey golden silver dark bright warm cold dry wet heavy light narrow wide
    short long old young new quiet loud quick slow gentle clever honest careful careless famous friendly hungry lonely
    patient proud simple strange sudden tired useful wooden empty broken hidden ancient common distant foreign secret
    always never often seldom again almost already slowly quickly quietly suddenly together alone outside inside
    everywhere somewhere tomorrow yesterday today early late once twice perhaps because although while until unless
    first second third last next another several many few most every each either neither both other same different
    money price value weight length number answer question reason problem idea plan rule law story lesson example
    paragraph chapter sentence language history science music weather nature travel journey distance direction
    evidence memory purpose pattern signal circuit channel balance pressure surface shadow mirror candle lantern
    blanket pocket button needle thread cotton leather marble copper iron steel glass timber canvas carpet curtain
    """.split()  # noqa: SIM905 - a list of 400 quoted words would hide them
)


_SENTENCE_WORDS = (8, 14)
_N_SAMPLE_WORDS = 400


class RandomText:
    """An endless source of random sentences, each word of which begins with a space."""

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
        """Return text of about `n_tokens` tokens, at least one word."""
        return self.words(max(1, round(n_tokens / self.tokens_per_word)))

    def beginning(self, text: str, n_tokens: int) -> str:
        """Return the first words of `text` that are about `n_tokens`, none for 0."""
        return "".join(f" {word}" for word in text.split()[: round(n_tokens / self.tokens_per_word)])

    def sentence(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the words of one sentence, including the `extra` ones, each with a space before it."""
        drawn = [*self._random.choices(WORDS, k=self._random.randint(*_SENTENCE_WORDS)), *extra]
        self._random.shuffle(drawn)
        return [f" {word}" for word in drawn[:-1]] + [f" {drawn[-1]}."]

    def tail(self) -> str:
        """Return a sentence to end a prompt with, so that no two prompts are equal."""
        return "".join(self.sentence())

    def choice(self) -> str:
        """Return one random word."""
        return self._random.choice(WORDS)

    def seed(self) -> int:
        """Return a seed for sampling."""
        return self._random.randrange(2**31)


async def measured_text(client: BenchClient, seed: int) -> RandomText:
    """Return prose that knows how many tokens its words have with the model that `client` talks to."""
    prose = RandomText(seed)
    answer = await client.complete(prose.words(_N_SAMPLE_WORDS), 2, temperature=0.0, ignore_eos=True)
    prose.tokens_per_word = answer.n_prompt / _N_SAMPLE_WORDS
    return prose
