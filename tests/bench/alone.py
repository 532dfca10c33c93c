"""What a model says when it answers alone: the text that every other way of computing it is held against.

One sequence at a time in a context of its own, without engine, batches, reuse or drafts. Owns the rule of what counts
as the same answer. Knows nothing of how the other one was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.loop.detokenizer import IncrementalDetokenizer
from app.engine.offline.eval_statistics import log_softmax
from app.engine.protocol.messages import EngineConfig
from app.engine.request import SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings

__all__ = ["GREEDY", "MARGIN", "Alone", "AloneAnswer", "Verdict", "compare", "compare_text"]

GREEDY = SamplingParams(temperature=0.0)
MARGIN = 0.05  # of logits: batches of other shapes round otherwise, so a tie within it may go either way


@dataclass(frozen=True, slots=True)
class AloneAnswer:
    """A greedy answer, an end token last where the model ended it; `margins[i]` is top-1 minus top-2 logit at i."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


class Verdict(Enum):
    EQUAL = "equal"
    WITHIN = "differs within the margin"
    BEYOND = "differs beyond the margin"


def compare(said: Sequence[int], alone: AloneAnswer) -> tuple[Verdict, int]:
    """Return how the tokens `said`, or the begin of an answer, compare with the one made alone, and where they part."""
    pairs = enumerate(zip(said, alone.tokens, strict=False))
    n_same = next((n for n, (ours, other) in pairs if ours != other), min(len(said), len(alone.tokens)))
    if n_same == len(said):
        return Verdict.EQUAL, n_same
    is_tie = n_same < len(alone.tokens) and alone.margins[n_same] <= MARGIN
    return (Verdict.WITHIN if is_tie else Verdict.BEYOND), n_same


def compare_text(said: str, pieces: Sequence[bytes], alone: AloneAnswer) -> tuple[Verdict, int]:
    """Do what `compare` does where only the whole text is known; `pieces` are those of the answer made alone."""
    stream, known = IncrementalDetokenizer(), ""
    for n_same, piece in enumerate(pieces):
        known += stream.push(piece)
        if not said.startswith(known):
            return (Verdict.WITHIN if alone.margins[n_same] <= MARGIN else Verdict.BEYOND), n_same
    return (Verdict.EQUAL if said == known + stream.finish() else Verdict.BEYOND), len(pieces)


class Alone:
    """A context for one sequence of at most `n_ctx` tokens over a loaded model. Close it before the model."""

    def __init__(self, model: LlamaModel, n_ctx: int, setting: RuntimeSettings) -> None:
        self._backend = model.context(EngineConfig(n_ctx=n_ctx, n_sequences=1, n_batch=n_ctx), setting)
        self._ends = [token for token in range(self._backend.facts.n_vocab) if self._backend.is_eog(token)]

    def answer(self, prompt: Sequence[int], n_tokens: int, *, ignore_eos: bool) -> AloneAnswer:
        """Return at most `n_tokens` that go on from `prompt`, which is computed as one batch."""
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
        return AloneAnswer(tuple(tokens), tuple(margins))

    def lead(self, token: int, other: int, before: Sequence[int], n_batch: int) -> float:
        """Return by how much the logit of `token` leads that of `other` after `before`, in batches of `n_batch`."""
        self._backend.truncate(0, 0)
        for begin in range(0, len(before), n_batch):
            chunk = before[begin : begin + n_batch]
            self._backend.decode([Chunk(0, begin, chunk, 1)])
        logits = self._backend.logits(len(chunk) - 1)
        return float(logits[token] - logits[other])

    def scores(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return how likely each of `tokens` but the first is after those before it; they are computed as one batch."""
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
