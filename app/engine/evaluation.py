"""A text in windows, and the logits that models give for the second half of each. Pure but for the models.

A token there has at least half a window before it, as llama.cpp's perplexity tool has it. Several models go through a
window side by side, so that what they predict can be compared without keeping it. Knows nothing of statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend, Chunk, DecodeStatus
from quantizer.errors import EngineError, UsageError

__all__ = ["MIN_WINDOW", "Scored", "Window", "compute", "predictions", "windows"]

MIN_WINDOW = 16  # tokens; a second half of fewer says nothing
_MAX_BLOCK_ELEMENTS = 1 << 21  # 8 MiB of logits at a time


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens to compute; `targets` are those that are to be predicted, each by the tokens before it."""

    tokens: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """Some consecutive `targets`, shape (n,), and the logits of each model for them, shape (n, n_vocab) each."""

    targets: NDArray[np.intp]
    logits: tuple[NDArray[np.float32], ...]


def windows(tokens: Sequence[int], n_ctx: int, begin: int | None, n_windows: int = 0) -> list[Window]:
    """Cut `tokens` into whole windows of `n_ctx`, all or the first `n_windows`; each starts with `begin`, if any.

    Raises UsageError for a text that fills no window.
    """
    if n_ctx < MIN_WINDOW:
        raise UsageError(f"Windows of {n_ctx} tokens are too short.", f"Give at least --ctx {MIN_WINDOW}.")
    n_whole = len(tokens) // n_ctx
    if not n_whole:
        raise UsageError(f"The text has {len(tokens)} tokens.", f"Give a longer one, or less than --ctx {n_ctx}.")
    count = min(n_whole, n_windows or n_whole)
    return [_window(tokens[at * n_ctx : (at + 1) * n_ctx], begin) for at in range(count)]


def predictions(backends: Sequence[Backend], window: Window) -> Iterator[Scored]:
    """Yield what each of `backends` predicts for the targets of `window`, some rows at a time.

    Their cache holds the window then. Raises EngineError when one cannot compute it.
    """
    tokens = window.tokens[:-1]  # the last is predicted and predicts nothing
    n_silent = len(tokens) - len(window.targets)
    targets = np.array(window.targets, np.intp)
    for begin, n_tokens in compute(backends, tokens, n_silent):
        first = max(0, n_silent - begin)
        n_rows = max(1, _MAX_BLOCK_ELEMENTS // backends[0].facts.n_vocab)
        for row in range(first, n_tokens, n_rows):
            rows = range(row, min(n_tokens, row + n_rows))
            at = begin + row - n_silent
            yield Scored(
                targets[at : at + len(rows)],
                tuple(np.stack([backend.logits(row) for row in rows]) for backend in backends),
            )


def compute(backends: Sequence[Backend], tokens: Sequence[int], n_silent: int) -> Iterator[tuple[int, int]]:
    """Compute `tokens` from an empty sequence in each of `backends`, those after the first `n_silent` with logits.

    Yields (position, number of tokens) of each batch while its logits can be had. Raises EngineError.
    """
    n_batch = min(backend.facts.n_batch for backend in backends)
    for backend in backends:
        backend.truncate(0, 0)
    for begin in range(0, len(tokens), n_batch):
        batch = tokens[begin : begin + n_batch]
        n_logits = min(len(batch), max(0, begin + len(batch) - n_silent))
        for backend in backends:
            if backend.decode([Chunk(0, begin, batch, n_logits)]) is not DecodeStatus.DONE:
                raise EngineError("The model could not compute a batch of the text.", "Give a smaller --ctx.")
        yield begin, len(batch)


def _window(tokens: Sequence[int], begin: int | None) -> Window:
    first = tokens[0] if begin is None else begin
    return Window((first, *tokens[1:]), tuple(tokens[len(tokens) // 2 + 1 :]))
