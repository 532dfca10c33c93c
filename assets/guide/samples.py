"""Training rows: token ids and which of them are learned, drawn from every task by a curriculum.

Owns the mix of tasks and its change over time. Draws only from the random generator in its arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from assets.guide.conversation import Dialogue, converse
from assets.guide.infill import infill
from assets.guide.vocabulary import SPECIAL_TOKENS, SYSTEM_TEXT

IGNORED = -100
SHARE_FILE_LEARNED = 0.3
REQUESTS = (
    "Repeat this text exactly:",
    "repeat this:",
    "Copy the following text:",
    "Quote this:",
    "Write this text again:",
)
Row = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the tasks at one moment, and the largest number of words to copy."""

    drill: float
    recall: float
    chat: float
    fill: float
    n_words: int


def mix_at(progress: float) -> Mix:
    """Return the curriculum at a progress from 0 to 1: drills of copying first, then ever longer real tasks."""
    n_words = round(12 + 288 * min(1.0, progress / 0.6))
    if progress < 0.03:
        return Mix(drill=0.5, recall=0.0, chat=0.4, fill=0.1, n_words=n_words)
    if progress < 0.4:
        return Mix(drill=0.1, recall=0.1, chat=0.7, fill=0.1, n_words=n_words)
    return Mix(drill=0.03, recall=0.1, chat=0.67, fill=0.2, n_words=n_words)


class Sampler:
    """Draws rows of a fixed length; labels are IGNORED where nothing is to be learned."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = tokenizer.get_vocab_size()

    def batch(self, n_rows: int, length: int, progress: float, rng: random.Random) -> list[Row]:
        """Return n_rows rows of `length` tokens and as many labels, labels already shifted by one."""
        mix = mix_at(progress)
        tasks: list[Callable[[Mix, int, random.Random], Row]] = [self._drill, self._recall, self._chat, self._fill]
        drawn = rng.choices(tasks, (mix.drill, mix.recall, mix.chat, mix.fill), k=n_rows)
        return [self._shifted(*task(mix, length, rng), length) for task in drawn]

    def _drill(self, mix: Mix, length: int, rng: random.Random) -> Row:
        """Return random tokens, the same span again and again."""
        ceiling = min(length // 2, 8 * mix.n_words // 3)
        n_span = rng.randint(3, ceiling)
        span = _span(rng, self._n_vocab, n_span)
        tokens = (span * (length // n_span + 2))[: length + 1]
        return tokens, [IGNORED] * n_span + tokens[n_span:]

    def _recall(self, mix: Mix, length: int, rng: random.Random) -> Row:
        """Return requests to repeat random tokens, so that copying works for tokens that are rare in the corpus."""
        tokens = self._tokenizer.encode(f"<|im_start|>system\n{SYSTEM_TEXT}<|im_end|>\n").ids
        labels = [IGNORED] * len(tokens)
        while len(tokens) < length:
            span = _span(rng, self._n_vocab, rng.randint(4, min(length // 3, 2 * mix.n_words)))
            before = self._tokenizer.encode(f"<|im_start|>user\n{rng.choice(REQUESTS)}\n\n").ids
            after = self._tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n").ids
            answer = span + self._tokenizer.encode("<|im_end|>").ids
            request = before + span + after
            tokens += request + answer
            labels += [IGNORED] * len(request) + answer
        return tokens, labels

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
            # Now and then the file itself is learned too: that is where the Python comes from.
            is_file_learned = rng.random() < SHARE_FILE_LEARNED
            labels += (prompt if is_file_learned else [IGNORED] * len(prompt)) + middle
        return tokens, labels

    def _shifted(self, tokens: list[int], labels: list[int], length: int) -> Row:
        """Return inputs and next-token labels, cut or padded to length."""
        n_missing = max(0, length + 1 - len(tokens))
        inputs = (tokens + [0] * n_missing)[:length]
        targets = (labels + [IGNORED] * n_missing)[1 : length + 1]
        return inputs, targets


def _span(rng: random.Random, n_vocab: int, n_tokens: int) -> list[int]:
    """Return random tokens over a small alphabet, its first ones far more often, as in a language."""
    n_letters = rng.randint(min(20, n_tokens + 4), 400)
    alphabet = rng.sample(range(len(SPECIAL_TOKENS), n_vocab), n_letters)
    is_even = rng.random() < 0.5
    weights = [1.0 if is_even else 1.0 / (rank + 1) for rank in range(n_letters)]
    return rng.choices(alphabet, weights, k=n_tokens)
