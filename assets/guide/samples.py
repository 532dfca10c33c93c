"""Training rows: token ids and which of them are learned, drawn from every task by a curriculum.

Owns the mix of tasks and its change over time. Draws only from the source of chance it is given.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from assets.guide.conversation import Dialogue, converse
from assets.guide.infill import infill

__all__ = ["Row", "Sampler"]

IGNORED = -100
Row = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the tasks at one moment, and the largest number of words to copy."""

    drill: float
    chat: float
    fill: float
    n_words: int


def mix_at(progress: float) -> Mix:
    """Return the curriculum at a progress from 0 to 1: drills of copying first, then ever longer real tasks."""
    drill = 0.5 if progress < 0.03 else 0.12 if progress < 0.4 else 0.04
    return Mix(drill=drill, chat=0.9 - drill, fill=0.1, n_words=round(12 + 288 * min(1.0, progress / 0.6)))


class Sampler:
    """Draws rows of a fixed length; labels are IGNORED where nothing is to be learned."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = tokenizer.get_vocab_size()

    def batch(self, n_rows: int, length: int, progress: float, rng: random.Random) -> list[Row]:
        """Return n_rows rows of `length` tokens and as many labels, labels already shifted by one."""
        mix = mix_at(progress)
        tasks: list[Callable[[Mix, int, random.Random], Row]] = [self._drill, self._chat, self._fill]
        drawn = rng.choices(tasks, (mix.drill, mix.chat, mix.fill), k=n_rows)
        return [self._shifted(*task(mix, length, rng), length) for task in drawn]

    def _drill(self, mix: Mix, length: int, rng: random.Random) -> Row:
        """Random tokens over a small alphabet, the same span again and again."""
        ceiling = min(length // 2, 8 * mix.n_words // 3)
        n_span = rng.randint(3, ceiling)
        alphabet = rng.sample(range(9, self._n_vocab), rng.randint(min(20, n_span + 4), 400))
        span = [rng.choice(alphabet) for _ in range(n_span)]
        tokens = (span * (length // n_span + 2))[: length + 1]
        return tokens, [IGNORED] * n_span + tokens[n_span:]

    def _chat(self, mix: Mix, length: int, rng: random.Random) -> Row:
        tokens: list[int] = []
        labels: list[int] = []
        dialogue = Dialogue(rng, min(mix.n_words, length // 4))
        for text, is_learned in converse(dialogue):
            piece = self._tokenizer.encode(text).ids
            if len(tokens) + len(piece) > length + 1 and len(tokens) > length // 2:
                break
            tokens += piece
            labels += piece if is_learned else [IGNORED] * len(piece)
            if len(tokens) > length:
                break
        return tokens, labels

    def _fill(self, _mix: Mix, length: int, rng: random.Random) -> Row:
        tokens: list[int] = []
        labels: list[int] = []
        while len(tokens) < length * 3 // 4:
            sample = infill(rng)
            prompt = self._tokenizer.encode(sample.prompt()).ids
            middle = self._tokenizer.encode(sample.middle + "<|endoftext|>").ids
            tokens += prompt + middle
            # The file itself is learned too: that is where the Python comes from.
            labels += prompt + middle
        return tokens, labels

    def _shifted(self, tokens: list[int], labels: list[int], length: int) -> Row:
        """Return inputs and next-token labels, cut or padded to length."""
        n_missing = max(0, length + 1 - len(tokens))
        inputs = (tokens + [0] * n_missing)[:length]
        targets = (labels + [IGNORED] * n_missing)[1 : length + 1]
        return inputs, targets
