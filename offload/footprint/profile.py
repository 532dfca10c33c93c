"""The memory of one model under one run configuration, layer by layer: bytes stored and bytes read per token. Pure.

Owns the sum of weights, cache and compute buffers. Independent of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat

from offload.footprint.auxiliary_models import AuxiliaryUsage
from offload.footprint.compute_buffers import compute_bytes, graph_shape_of, output_bytes
from offload.footprint.kv_cache import (
    DRAFT_CELLS,
    CacheCells,
    KvTypes,
    cache_layers,
    cells_for,
    check_kv_types,
    n_cached_sequences,
    n_holds,
    n_states,
    prediction_cache_bytes,
    supports_truncation,
)
from offload.footprint.weights import Layer, WeightTable
from offload.speed.host_work import attention_bytes
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import kv_shape_of, layer_caches_of

ENGINE_BYTES = 150 << 20  # of the engine's process: Python, libraries, vocabulary
_FLOAT_BYTES = 4
DEFAULT_N_UBATCH = 512  # tokens computed at once
DEFAULT_DEPTH = 512  # tokens before the one whose speed is predicted
_F16 = KvTypes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration of a run. All sequences share `n_cells`, and `n_sequences` of them are served at once.

    `depth` is the number of tokens before the one whose speed is predicted. Only a request for a plan leaves `n_ctx` or
    `n_cells` open with 0, or has `gpu_layers`: layers by GPU name, the output counted as one; None leaves them to the
    planner.
    """

    n_ctx: int = 0
    n_cells: int = 0
    kv_types: KvTypes = _F16
    n_sequences: int = 1
    n_ubatch: int = DEFAULT_N_UBATCH
    depth: int = DEFAULT_DEPTH
    is_fused: bool = True
    gpu_layers: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model under one configuration. `layers` end with the output; layers that only predict count, as in llama.cpp.

    `input_bytes` always lie with the processor; `tied_bytes` lie a second time on the device of the output, which takes
    `compute_bytes`; every other device that has a layer takes `inner_compute_bytes`, for it makes no logits. GPUs whose
    cache lies with the processor do not attend: they take at most `unattending_bytes`.
    """

    layers: tuple[Layer, ...]
    input_bytes: int
    tied_bytes: int
    compute_bytes: int
    inner_compute_bytes: int
    unattending_bytes: int
    host_bytes: int
    has_experts: bool
    is_exact: bool
    run_config: RunConfig
    extras: tuple[AuxiliaryUsage, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, once."""
        return self.input_bytes + sum(layer.weight_bytes for layer in self.layers)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys, values and states."""
        return sum(layer.cache_bytes for layer in self.layers)

    @property
    def beside_bytes(self) -> int:
        """Bytes of auxiliary models, once, on the device of the output."""
        return sum(extra.beside_bytes for extra in self.extras)

    @property
    def beside_host_bytes(self) -> int:
        """Bytes of auxiliary models that are the processor's wherever the layers go."""
        return sum(extra.host_bytes for extra in self.extras)

    @property
    def total_bytes(self) -> int:
        """Bytes that the model takes where one device with the processor's memory has all of it."""
        own = self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes
        return own + self.beside_bytes + self.beside_host_bytes


def profile_of(
    header: Header, weights: WeightTable, run_config: RunConfig, *, has_mtp_layer: bool = False
) -> ModelProfile:
    """Return the memory of the model of `header` and its `weights`, with the prediction layer where it `has_mtp_layer`.

    Raises UsageError where the model cannot have such a cache.
    """
    check_kv_types(run_config.kv_types, kv_shape_of(header))
    caches, shape = layer_caches_of(header), graph_shape_of(header)
    can_truncate, n_ubatch = supports_truncation(caches), run_config.n_ubatch
    places = n_cached_sequences(caches, run_config.n_sequences)
    n_native = places + n_holds(run_config.n_sequences, supports_truncation=can_truncate)
    cells = cells_for(caches, run_config.n_cells, n_sequences=n_native, n_ubatch=n_ubatch)
    rows = n_states(
        run_config.n_sequences,
        supports_truncation=can_truncate,
        architecture=header.architecture,
        n_ubatch=n_ubatch,
    )
    cells = replace(cells, n_sequences=rows)
    kept = cache_layers(caches, run_config.kv_types, cells, is_fused=run_config.is_fused)
    if has_mtp_layer:
        head_cells = run_config.n_cells + run_config.n_sequences * DRAFT_CELLS
        kept = (*kept[:-1], prediction_cache_bytes(caches, run_config.kv_types, head_cells))
    seen = CacheCells(run_config.depth, min(run_config.depth, caches.n_window or run_config.depth), 1)
    read = cache_layers(caches, run_config.kv_types, seen, is_fused=run_config.is_fused)
    attending = attention_bytes(header, caches, run_config.depth, is_fused=run_config.is_fused)
    attending = chain(attending, repeat(0.0, caches.n_predicting))
    layers = [
        replace(layer, cache_bytes=n_kept, cache_read_bytes=n_read, attention_bytes=n_attending)
        for layer, n_kept, n_read, n_attending in zip(weights.layers, kept, read, attending, strict=True)
    ]
    computing = partial(compute_bytes, shape, cells.n_full, n_ubatch=run_config.n_ubatch, is_fused=run_config.is_fused)
    inputs_bytes = shape.n_embd * run_config.n_ubatch * _FLOAT_BYTES
    return ModelProfile(
        layers=(*layers, weights.output),
        input_bytes=weights.input.weight_bytes,
        tied_bytes=weights.tied_bytes,
        compute_bytes=computing(),
        inner_compute_bytes=computing(has_output=False),
        unattending_bytes=computing(has_attention=False),
        host_bytes=output_bytes(shape, places) + inputs_bytes + ENGINE_BYTES,
        has_experts=weights.has_experts,
        is_exact=caches.is_complete,
        run_config=run_config,
    )
