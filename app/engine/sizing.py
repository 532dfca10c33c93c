"""From what was asked and what the header says to the sizes of a context, before anything is loaded.

Owns where the numbers come from: the file, and this machine's memory. How they decide is `offload`'s.
"""

from __future__ import annotations

from dataclasses import replace

import psutil

from app.engine.frames import EngineConfig
from offload.context import ContextQuestion, plan_context
from offload.kv_cache import bytes_per_cell, check_kv_types, parse_kv_types
from quantizer.gate import shard_paths
from quantizer.header import Header
from quantizer.kv_shape import kv_shape_of

__all__ = ["sized"]


def sized(config: EngineConfig, header: Header, *, is_on_host: bool) -> tuple[EngineConfig, str]:
    """Return `config` with context and cells chosen, and a notice for a person or "".

    Unless the cache `is_on_host` nobody knows here what it may take. Raises UsageError for cache types that this model
    cannot have, EngineError for a context that does not fit.
    """
    types, shape = parse_kv_types(config.kv_type), kv_shape_of(header)
    check_kv_types(types, shape)
    plan = plan_context(
        ContextQuestion(
            n_ctx=config.n_ctx,
            n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
            n_sequences=config.n_sequences,
            bytes_per_cell=bytes_per_cell(types, shape),
            weight_bytes=sum(path.stat().st_size for path in shard_paths(header)),
            free_bytes=psutil.virtual_memory().available if is_on_host else None,
        )
    )
    return replace(config, n_ctx=plan.n_ctx, n_cells=plan.n_cells, kv_type=str(types)), plan.notice
