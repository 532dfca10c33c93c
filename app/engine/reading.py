"""A model that only reads: loaded for one text at a time, without drafts, adapters or a store.

Owns what such a model is loaded with. Everything native is imported when called.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine import selftest
from app.engine.backend import Backend
from app.engine.frames import EngineConfig
from app.engine.loading_devices import Devices
from app.engine.tuning import Setting, default_setting
from app.settings import load_settings
from offload.cpu import default_threads
from quantizer.card import card_of
from quantizer.errors import UsageError
from quantizer.header import read_header

if TYPE_CHECKING:
    from app.engine.llama import Watch

__all__ = ["Reader", "load_reader"]

_MAX_BATCH, _MIN_BATCH = 512, 64
_MIN_CELLS = 128  # speeds are measured on as many
_MAX_LOGIT_BYTES = 128 << 20  # llama.cpp keeps the logits of a whole batch


@dataclass(frozen=True, slots=True)
class Reader:
    """A backend, what it runs under, and the token that the vocabulary puts before a text, if it does."""

    backend: Backend
    setting: Setting
    begin: int | None


def load_reader(
    path: Path,
    n_ctx: int,
    n_threads: int,
    owned: ExitStack,
    watch: Watch | None = None,
    *,
    is_writable: bool = False,
) -> Reader:
    """Load the model at `path`, which the gate has let through; `owned` frees it. `n_threads` 0 takes the
    default; `watch` sees what it computes, and weights that are `is_writable` may be written over.

    Raises UsageError for windows longer than the model was trained on and for an embedding model, EngineError when it
    cannot be loaded.
    """
    from app.engine import llama

    settings = load_settings()
    config = EngineConfig(n_ctx=n_ctx, n_cells=_MIN_CELLS, n_sequences=1, n_batch=_n_batch(path), uses_gpu=settings.gpu)
    devices = Devices(config, settings.cache_dir)
    is_safe = selftest.examine(settings.cache_dir / "selftest.json").is_safe
    setting = default_setting(n_threads or default_threads(), has_gpu=devices.has_gpu, extra_buffers_are_safe=is_safe)
    has_extra = setting.extra_buffers and not is_writable  # those hold weights in an order of their own
    parameters = devices.parameters(path, config, setting)
    model = llama.LlamaModel(path, parameters, has_extra, on_progress=lambda _fraction: True, is_writable=is_writable)
    owned.callback(model.close)
    backend = model.context(config, setting, watch)
    owned.callback(backend.close)
    if not backend.facts.can_generate:
        raise UsageError(f"{path.name} makes embeddings; it predicts no text.", "Name a chat or completion model.")
    if n_ctx > backend.facts.n_ctx_train:
        trained = backend.facts.n_ctx_train
        raise UsageError(f"{path.name} was trained on {trained} tokens.", f"Give at most --ctx {trained}.")
    return Reader(backend, setting, model.vocabulary().begin)


def _n_batch(path: Path) -> int:
    """Return how many tokens are computed at once, fewer where the vocabulary is large."""
    n_vocab = card_of(read_header(path)).n_vocab
    return max(_MIN_BATCH, min(_MAX_BATCH, _MAX_LOGIT_BYTES // (4 * max(1, n_vocab))))
