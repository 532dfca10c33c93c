"""How large a model's cache is, by context and type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offload.cache_size import cache_layers, cells_for
from offload.kv_cache import KV_TYPES, KvTypes, can_have
from offload.model import PlannedModel
from quantizer.layer_caches import layer_caches_of

__all__ = ["KvRow", "kv_table"]

_LEAST_N_CTX, _MOST_ROWS = 2048, 10


@dataclass(frozen=True, slots=True)
class KvRow:
    """Bytes of a cache of `n_ctx` tokens by the name of its type, states included."""

    n_ctx: int
    n_bytes: Mapping[str, int]


def kv_table(model: PlannedModel, n_sequences: int) -> tuple[KvRow, ...]:
    """Return a row for every doubling of the context, to what the model was trained on; only types it can have."""
    caches, shape = layer_caches_of(model.header), model.kv_shape
    types = [kv_types for name in KV_TYPES if can_have(kv_types := KvTypes(name, name), shape)]
    rows = []
    for n_ctx in _contexts(model.n_ctx_train):
        cells = cells_for(caches, n_ctx, n_sequences=n_sequences)
        rows.append(KvRow(n_ctx, {str(kv_types): sum(cache_layers(caches, kv_types, cells)) for kv_types in types}))
    return tuple(rows)


def _contexts(n_ctx_train: int) -> list[int]:
    doublings = [_LEAST_N_CTX << power for power in range(_MOST_ROWS)]
    return [*(n_ctx for n_ctx in doublings if n_ctx < n_ctx_train), n_ctx_train or _LEAST_N_CTX]
