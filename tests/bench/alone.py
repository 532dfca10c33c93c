"""Reference answers of a model, computed alone, and their comparison with answers computed in other ways.

One sequence at a time in a context of its own, without engine, batches, reuse or drafts. Owns the rule of which answers
are equal. Independent of how the other answer was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.loop.output import IncrementalDetokenizer
from app.engine.messages import EngineConfig
from app.engine.offline.evaluation import log_softmax
from app.engine.request import SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings

__all__ = ["GREEDY", "MARGIN", "Alone", "Match", "ReferenceAnswer", "compare", "compare_text"]

GREEDY = SamplingParams(temperature=0.0)
MARGIN = 0.05  # of logits: batches of other shapes round differently, so a tie within it may go either way


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """A greedy answer, with its end token if it has one; `margins[i]` is top-1 minus top-2 logit at i."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


class Match(Enum):
    EQUAL = "equal"
    WITHIN = "differs within the margin"
    BEYOND = "differs beyond the margin"


def compare(tokens: Sequence[int], alone: ReferenceAnswer) -> tuple[Match, int]:
    """Return how `tokens`, or the first tokens of an answer, match the reference, and how many are equal."""
    pairs = enumerate(zip(tokens, alone.tokens, strict=False))
    n_same = next((n for n, (ours, other) in pairs if ours != other), min(len(tokens), len(alone.tokens)))
    if n_same == len(tokens):
        return Match.EQUAL, n_same
    is_tie = n_same < len(alone.tokens) and alone.margins[n_same] <= MARGIN
    return (Match.WITHIN if is_tie else Match.BEYOND), n_same


def compare_text(
    text: str, pieces: Sequence[bytes], alone: ReferenceAnswer, margin: float = MARGIN
) -> tuple[Match, int]:
    """Do the same as `compare` if only the text is known; `pieces` are those of the reference."""
    stream, known = IncrementalDetokenizer(), ""
    for n_same, piece in enumerate(pieces):
        known += stream.push(piece)
        if not text.startswith(known):
            return (Match.WITHIN if alone.margins[n_same] <= margin else Match.BEYOND), n_same
    return (Match.EQUAL if text == known + stream.finish() else Match.BEYOND), len(pieces)


class Alone:
    """A context for one sequence of at most `n_ctx` tokens over a loaded model. Close it before the model."""

    def __init__(self, model: LlamaModel, n_ctx: int, setting: RuntimeSettings) -> None:
        config = EngineConfig(n_ctx=n_ctx, n_sequences=1, n_batch=n_ctx)
        self._backend = model.context(config, setting, with_mtp=False)
        self._ends = [token for token in range(self._backend.facts.n_vocab) if self._backend.is_eog(token)]

    def answer(self, prompt: Sequence[int], n_tokens: int, *, ignore_eos: bool) -> ReferenceAnswer:
        """Return at most `n_tokens` after `prompt`, which is computed as one batch."""
        self._backend.truncate(0, 0)
        sampler = self._backend.new_sampler(GREEDY, ignore_eos)
        tokens: list[int] = []
        margins: list[float] = []
        position, new = 0, list(prompt)
        while len(tokens) < n_tokens and not (tokens and self._backend.is_eog(tokens[-1])):
            self._backend.decode([Chunk(0, position, new, 1)])
            margins.append(self._margin(len(new) - 1, ignore_eos=ignore_eos))
            tokens.append(sampler.sample(len(new) - 1))
            position, new = position + len(new), tokens[-1:]
        sampler.close()
        return ReferenceAnswer(tuple(tokens), tuple(margins))

    def lead(self, token: int, other: int, before: Sequence[int], n_batch: int) -> float:
        """Return by how much the logit of `token` leads that of `other` after `before`, in batches of `n_batch`."""
        self._backend.truncate(0, 0)
        for begin in range(0, len(before), n_batch):
            chunk = before[begin : begin + n_batch]
            self._backend.decode([Chunk(0, begin, chunk, 1)])
        logits = self._backend.logits(len(chunk) - 1)
        return float(logits[token] - logits[other])

    def scores(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return the log probability of each of `tokens` but the first, computed as one batch."""
        self._backend.truncate(0, 0)
        before = tokens[:-1]
        self._backend.decode([Chunk(0, 0, before, len(before))])
        logits = np.stack([self._backend.logits(row) for row in range(len(before))])
        found: NDArray[np.float64] = log_softmax(logits)[np.arange(len(before)), tokens[1:]]
        return found

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        return self._backend.tokenize(text, add_special, parse_special=False)

    def piece(self, token: int) -> bytes:
        return self._backend.piece(token)

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.piece(token) for token in tokens).decode("utf-8", "replace")

    def close(self) -> None:
        self._backend.close()

    def _margin(self, row: int, *, ignore_eos: bool) -> float:
        second, first = np.partition(self._allowed(row, ignore_eos=ignore_eos), -2)[-2:]
        return float(first - second)

    def _allowed(self, row: int, *, ignore_eos: bool) -> NDArray[np.float32]:
        logits = self._backend.logits(row)
        if ignore_eos:
            logits[self._ends] = -np.inf
        return logits
