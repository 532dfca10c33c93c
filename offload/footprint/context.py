"""The context length of a model, and the cells that all sequences share. Pure.

Owns the default, what is refused, and the notice to the user. Independent of how memory is measured or allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.system.errors import EngineError

DEFAULT_N_CTX = 8192  # longer prompts take minutes to compute on a CPU, so they are opt-in
DEFAULT_N_CELLS = 8192  # of one default context: what idle conversations had in them is saved, and restored for them
MIN_N_CTX = 2048  # a default below it would hardly hold a request and its answer
MEMORY_SHARE = 0.5  # of the memory beside the weights, for the default context
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """The facts known before a context is made. `n_ctx` 0 leaves it open; `n_ctx_train` 0 is unknown.

    `bytes_per_cell` is of all layers; `windowed_bytes_per_cell` of those with a window, which have at most
    `n_windowed_cells`. `free_bytes` is the memory for cache and weights; None where it is unknown.
    """

    n_ctx: int
    n_ctx_train: int
    n_sequences: int
    bytes_per_cell: int
    weight_bytes: int
    free_bytes: int | None
    windowed_bytes_per_cell: int = 0
    n_windowed_cells: int = 0

    def cache_bytes(self, n_cells: int) -> int:
        """Return the bytes of a cache of `n_cells`."""
        n_saved = max(0, n_cells - self.n_windowed_cells)
        return n_cells * self.bytes_per_cell - n_saved * self.windowed_bytes_per_cell


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """The longest sequence, the cells that all share, both in tokens, and a notice to the user, if any."""

    n_ctx: int
    n_cells: int
    notice: str = ""


def plan_context(request: ContextRequest) -> ContextPlan:
    """Return the context that fits: the requested one, or the default.

    More than fits is refused, for the cache is written to at once and the system would end some process for it; more
    than the model was trained on is granted with a notice, as some models bear it. Raises EngineError with the numbers.
    """
    n_fitting = _n_fitting(request, request.free_bytes)
    n_affordable = _n_fitting(request, _left_by_weights(request))
    n_ctx = request.n_ctx or _default(request, n_affordable)
    if n_fitting is not None and n_ctx > n_fitting:
        raise _too_large(request, n_ctx, n_fitting)
    n_wanted = max(n_ctx, min(n_ctx * request.n_sequences, DEFAULT_N_CELLS))
    n_cells = n_wanted if n_affordable is None else max(n_ctx, min(n_wanted, n_affordable))
    return ContextPlan(n_ctx, n_cells, _notice(request, n_ctx, n_fitting))


def _default(request: ContextRequest, n_affordable: int | None) -> int:
    n_trained = request.n_ctx_train or DEFAULT_N_CTX
    n_most = DEFAULT_N_CTX if n_affordable is None else max(MIN_N_CTX, min(DEFAULT_N_CTX, n_affordable))
    return min(n_trained, n_most)


def _left_by_weights(request: ContextRequest) -> int | None:
    """Return the bytes that the default context may take, None where free memory is unknown."""
    if request.free_bytes is None:
        return None
    return int(max(0, request.free_bytes - request.weight_bytes) * MEMORY_SHARE)


def _n_fitting(request: ContextRequest, n_bytes: int | None) -> int | None:
    """Return how many cells `n_bytes` hold, None where there is no limit."""
    if n_bytes is None or not request.bytes_per_cell:
        return None
    n_cells = n_bytes // request.bytes_per_cell
    full_bytes = request.bytes_per_cell - request.windowed_bytes_per_cell
    if n_cells <= request.n_windowed_cells or not request.windowed_bytes_per_cell:
        return n_cells
    return (n_bytes - request.n_windowed_cells * request.windowed_bytes_per_cell) // full_bytes if full_bytes else None


def _too_large(request: ContextRequest, n_ctx: int, n_fitting: int) -> EngineError:
    assert request.free_bytes is not None
    needed, free = (n_bytes // _MIB for n_bytes in (request.cache_bytes(n_ctx), request.free_bytes))
    return EngineError(
        f"Not enough memory: a context of {n_ctx:,} tokens needs {needed:,} MiB of KV cache and may use {free:,} MiB.",
        f"Use a --ctx of at most {n_fitting:,}, or a smaller --kv-type such as q8_0.",
    )


def _notice(request: ContextRequest, n_ctx: int, n_fitting: int | None) -> str:
    n_trained = request.n_ctx_train
    if n_trained and n_ctx > n_trained:
        return f"The context of {n_ctx:,} tokens is longer than the {n_trained:,} this model was trained on."
    n_possible = n_trained if n_fitting is None else min(n_trained, n_fitting)
    if request.n_ctx or n_possible <= n_ctx:
        return ""
    return (
        f"The context is {n_ctx:,} tokens; this model could use {n_possible:,}. "
        f"A longer request raises it where memory allows; F7 in the app or --ctx {n_possible} does so at once."
    )
