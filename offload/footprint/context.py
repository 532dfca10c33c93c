"""How many tokens of context a model gets, and how many cells all answers share. Pure.

Owns the default, what is refused and what a person is told. Independent of how memory is measured or allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.errors import EngineError

__all__ = ["ContextPlan", "ContextRequest", "plan_context"]

DEFAULT_N_CTX = 8192  # longer prompts take minutes to compute on a CPU: who wants them says so
DEFAULT_N_CELLS = 16384  # for the prefixes of several conversations
MIN_N_CTX = 2048  # a default below it would hardly hold a question and its answer
MEMORY_SHARE = 0.5  # of what weights leave free, for a context that nobody asked for
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """What is known before a context is made. `n_ctx` 0 leaves it open; `n_ctx_train` 0 is unknown.

    `free_bytes` is the memory that the cache may come from, weights included; None where nobody can tell.
    """

    n_ctx: int
    n_ctx_train: int
    n_sequences: int
    bytes_per_cell: int
    weight_bytes: int
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """The longest sequence, the cells that all share, both in tokens, and what a person should be told, if anything."""

    n_ctx: int
    n_cells: int
    notice: str = ""


def plan_context(question: ContextRequest) -> ContextPlan:
    """Return the context that fits: what was asked for, or the default.

    More than fits is refused, for the cache is written to at once and the system would end some process for it; more
    than the model was trained on is granted with a notice, as some models bear it. Raises EngineError with the numbers.
    """
    n_fitting = _n_fitting(question, question.free_bytes)
    n_ctx = question.n_ctx or _default(question)
    if n_fitting is not None and n_ctx > n_fitting:
        raise _too_large(question, n_ctx, n_fitting)
    n_wanted = max(n_ctx, min(n_ctx * question.n_sequences, DEFAULT_N_CELLS))
    n_affordable = _n_fitting(question, _left_by_weights(question))
    n_cells = n_wanted if n_affordable is None else max(n_ctx, min(n_wanted, n_affordable))
    return ContextPlan(n_ctx, n_cells, _notice(question, n_ctx, n_fitting))


def _default(question: ContextRequest) -> int:
    n_trained = question.n_ctx_train or DEFAULT_N_CTX
    n_affordable = _n_fitting(question, _left_by_weights(question))
    n_most = DEFAULT_N_CTX if n_affordable is None else max(MIN_N_CTX, min(DEFAULT_N_CTX, n_affordable))
    return min(n_trained, n_most)


def _left_by_weights(question: ContextRequest) -> int | None:
    """Return the bytes that may be taken unasked, None where free memory is unknown."""
    if question.free_bytes is None:
        return None
    return int(max(0, question.free_bytes - question.weight_bytes) * MEMORY_SHARE)


def _n_fitting(question: ContextRequest, n_bytes: int | None) -> int | None:
    """Return how many cells `n_bytes` hold, None where there is no limit."""
    return n_bytes // question.bytes_per_cell if n_bytes is not None and question.bytes_per_cell else None


def _too_large(question: ContextRequest, n_ctx: int, n_fitting: int) -> EngineError:
    assert question.free_bytes is not None
    needed, free = (n_bytes // _MIB for n_bytes in (n_ctx * question.bytes_per_cell, question.free_bytes))
    return EngineError(
        f"A context of {n_ctx:,} tokens needs {needed:,} MiB of KV cache and {free:,} MiB of memory are free.",
        f"Use a --ctx of at most {n_fitting:,}, or a smaller --kv-type such as q8_0.",
    )


def _notice(question: ContextRequest, n_ctx: int, n_fitting: int | None) -> str:
    n_trained = question.n_ctx_train
    if n_trained and n_ctx > n_trained:
        return f"The context of {n_ctx:,} tokens is longer than the {n_trained:,} this model was trained on."
    n_possible = n_trained if n_fitting is None else min(n_trained, n_fitting)
    if question.n_ctx or n_possible <= n_ctx:
        return ""
    return f"The context is {n_ctx:,} tokens; this model could use {n_possible:,} here: --ctx {n_possible}."
