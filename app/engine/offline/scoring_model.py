"""A model that scores texts: loaded without drafts, adapters or a store; and a text in windows with their logits.

The second half of each window is scored, so that a token has at least half a window before it, as in llama.cpp's
perplexity tool. Several models read a window side by side, so that their predictions are compared without storing them.
Native code is imported when called. Independent of statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend, Chunk, DecodeStatus, n_batch_with_logits
from app.engine.load.planner import LoadDevices
from app.engine.load.self_test import run_self_test
from app.engine.messages import EngineConfig
from app.engine.model_task import TaskProgress
from app.engine.tuning.tune_results import RuntimeSettings, default_setting
from app.protocol import codec
from app.settings.settings import load_settings
from offload.devices.host import default_threads
from quantizer.gguf.header import read_header
from quantizer.gguf.model_info import read_model_info
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.files import read_regular, write_cache

if TYPE_CHECKING:
    from app.engine.llama import EvalObserver


MIN_WINDOW = 16  # tokens; a second half of fewer shows nothing
_MAX_BLOCK_ELEMENTS = 1 << 21  # 8 MiB of logits at a time
_MIN_CELLS = 128  # speeds are measured with as many
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens to compute; `targets` are those to predict, each from the tokens before it."""

    tokens: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetLogits:
    """Some consecutive `targets`, shape (n,), and the logits of each model for them, shape (n, n_vocab) each."""

    targets: NDArray[np.intp]
    logits: tuple[NDArray[np.float32], ...]


def windows(tokens: Sequence[int], n_ctx: int, begin: int | None, n_windows: int = 0) -> list[Window]:
    """Split `tokens` into whole windows of `n_ctx`, all or the first `n_windows`; each starts with `begin`, if any.
    Raises UsageError for a text that fills no window."""
    if n_ctx < MIN_WINDOW:
        raise UsageError(f"Windows of {n_ctx} tokens are too short.", f"Use at least --ctx {MIN_WINDOW}.")
    n_whole = len(tokens) // n_ctx
    if not n_whole:
        raise UsageError(f"The text has {len(tokens)} tokens.", f"Use a longer one, or less than --ctx {n_ctx}.")
    count = min(n_whole, n_windows or n_whole)
    parts = (tokens[at * n_ctx : (at + 1) * n_ctx] for at in range(count))
    return [Window((part[0] if begin is None else begin, *part[1:]), tuple(part[n_ctx // 2 + 1 :])) for part in parts]


def predictions(backends: Sequence[Backend], window: Window) -> Iterator[TargetLogits]:
    """Yield the logits of each of `backends` for the targets of `window`, some rows at a time. Their caches contain the
    window afterwards. Raises EngineError when one cannot compute it."""
    tokens = window.tokens[:-1]  # the last is predicted and predicts nothing
    n_context = len(tokens) - len(window.targets)
    targets = np.array(window.targets, np.intp)
    for begin, n_tokens in compute(backends, tokens, n_context):
        first = max(0, n_context - begin)
        n_rows = max(1, _MAX_BLOCK_ELEMENTS // backends[0].facts.n_vocab)
        for row in range(first, n_tokens, n_rows):
            rows = range(row, min(n_tokens, row + n_rows))
            at = begin + row - n_context
            yield TargetLogits(
                targets[at : at + len(rows)],
                tuple(np.stack([backend.logits(row) for row in rows]) for backend in backends),
            )


def compute(backends: Sequence[Backend], tokens: Sequence[int], n_context: int) -> Iterator[tuple[int, int]]:
    """Compute `tokens` from an empty sequence in each of `backends`, those after the first `n_context` with logits.
    Yields (position, number of tokens) of each batch while its logits can be read. Raises EngineError."""
    n_batch = min(backend.facts.n_batch for backend in backends)
    for backend in backends:
        backend.truncate(0, 0)
    for begin in range(0, len(tokens), n_batch):
        batch = tokens[begin : begin + n_batch]
        n_logits = min(len(batch), max(0, begin + len(batch) - n_context))
        for backend in backends:
            if backend.decode([Chunk(0, begin, batch, n_logits)]) is not DecodeStatus.DONE:
                raise EngineError("The model could not compute a batch of the text.", "Use a smaller --ctx.")
        yield begin, len(batch)


def read_windows(backend: Backend, todo: Sequence[Window], check: Callable[[], None]) -> Iterator[TaskProgress]:
    """Compute windows of a text, all tokens with logits (llama.cpp computes the end of the last layer for those only),
    for an observer of the graph's nodes: `check` raises what it met. Yield a step for each."""
    for index, window in enumerate(todo):
        try:
            for _ in compute([backend], window.tokens, n_context=0):
                pass
        finally:
            check()
        yield TaskProgress(index, len(todo))


@dataclass(frozen=True, slots=True)
class ScoringModel:
    """A backend, its settings, and the token that the vocabulary puts before a text, if any."""

    backend: Backend
    setting: RuntimeSettings
    begin: int | None


def load_scoring_model(
    path: Path,
    n_ctx: int,
    n_threads: int,
    owned: ExitStack,
    observer: EvalObserver | None = None,
    *,
    is_writable: bool = False,
) -> ScoringModel:
    """Load the validated model at `path`; `owned` frees it. `n_threads` 0 uses the default. `observer` receives what it
    computes. Weights that are `is_writable` may be overwritten. Raises UsageError for windows longer than the trained
    context and for an embedding model, EngineError when it cannot be loaded."""
    settings = load_settings()
    is_safe = run_self_test(settings.cache_dir).is_safe  # before llama.cpp is loaded
    from app.engine import llama

    n_batch = n_batch_with_logits(read_model_info(read_header(path)).n_vocab)
    config = EngineConfig(n_ctx=n_ctx, n_cells=_MIN_CELLS, n_sequences=1, n_batch=n_batch, uses_gpu=settings.gpu)
    devices = LoadDevices(config, settings.cache_dir)
    setting = default_setting(n_threads or default_threads(), has_gpu=devices.has_gpu, extra_buffers_are_safe=is_safe)
    has_extra = setting.extra_buffers and not is_writable  # repacked weights could not be overwritten as in the file
    parameters = devices.parameters(path, config, setting)
    model = llama.LlamaModel(path, parameters, has_extra, on_progress=lambda _fraction: True, is_writable=is_writable)
    owned.callback(model.close)
    backend = model.context(config, setting, observer)
    owned.callback(backend.close)
    if not backend.facts.can_generate:
        raise UsageError(f"{path.name} is an embedding model; it predicts no text.", "Use a chat or completion model.")
    if n_ctx > backend.facts.n_ctx_train:
        trained = backend.facts.n_ctx_train
        raise UsageError(f"{path.name} was trained on {trained} tokens.", f"Use at most --ctx {trained}.")
    return ScoringModel(backend, setting, model.vocabulary().begin)


def cached_results(
    path: Path, result_type: type[_Result], measure: Callable[[], Sequence[_Result]]
) -> Sequence[_Result]:
    """Return the content of the file at `path`; if it cannot be read, `measure`, and write it if that can be."""
    try:
        return [codec.decode_checked(result_type, entry) for entry in json.loads(read_regular(path))]
    except (OSError, ValueError, TypeError, RecursionError):
        measured = measure()
    write_cache(path, json.dumps(codec.encode(list(measured))))
    return measured
