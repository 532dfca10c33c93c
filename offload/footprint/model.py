"""A model to plan for: its header, the tensors of all its files, and the models loaded beside it.

Owns the views of it: a profile under a run configuration, the same model in another quantization, the memory of
auxiliary models, and the sizes of its cache by context and type. Independent of machines, and of how tensors are
converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from offload.footprint.auxiliary_models import (
    DRAFT_HEADS,
    HEAD_BATCH,
    NO_AUXILIARY_MODELS,
    AuxiliaryModels,
    AuxiliaryUsage,
    PlannedProjector,
)
from offload.footprint.compute_buffers import bounded_ubatch, graph_shape_of
from offload.footprint.kv_cache import (
    DRAFT_CELLS,
    KV_TYPES,
    KvTypes,
    cache_layers,
    cells_for,
    n_cached_sequences,
    n_seq_max,
    n_states,
    supports_kv_types,
    supports_truncation,
)
from offload.footprint.profile import DEFAULT_N_UBATCH, ENGINE_BYTES, ModelProfile, RunConfig, profile_of
from offload.footprint.weights import WeightTable, weights_of
from quantizer.convert.source_model import model_shape
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.layer_caches import KvShape, kv_shape_of, layer_caches_of
from quantizer.gguf.tensor_types import TENSOR_TYPES, FileType
from quantizer.gguf.validation import tensors_of, validate_gguf
from quantizer.mix.type_rules import MixTensor, assign


@dataclass(frozen=True)
class PlannedModel:
    """A model by the `header` of its first file and the `tensors` of all files.

    `compute_scale` corrects the formula of compute buffers by what a dry run measured.
    """

    header: Header
    tensors: tuple[TensorInfo, ...]
    compute_scale: float = 1.0
    auxiliary: AuxiliaryModels = NO_AUXILIARY_MODELS

    @classmethod
    def read(cls, path: Path) -> PlannedModel:
        """Return the model at `path`, all its files. Raises ModelFileError where validation rejects it."""
        header = validate_gguf(path)
        return cls(header, tensors_of(header))

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_parameters(self) -> int:
        """The number of weights in all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that it was trained on, 0 where the file has none."""
        return hyperparameter(self.header, "context_length")

    @property
    def kv_shape(self) -> KvShape:
        """The elements that a token takes in its cache."""
        return kv_shape_of(self.header)

    @cached_property
    def _weights(self) -> WeightTable:
        """Its weights with those of adapters, whatever the configuration."""
        tensors = (*self.tensors, *self.auxiliary.adapter_tensors)
        return weights_of(self.header, tensors, has_mtp_layer=self.auxiliary.has_mtp_layer)

    def profile(self, run_config: RunConfig) -> ModelProfile:
        """Return its memory under `run_config`. Raises UsageError for a cache that it cannot have."""
        profile = profile_of(self.header, self._weights, run_config, has_mtp_layer=self.auxiliary.has_mtp_layer)
        profile = replace(
            profile,
            compute_bytes=int(profile.compute_bytes * self.compute_scale),
            inner_compute_bytes=int(profile.inner_compute_bytes * self.compute_scale),
            unattending_bytes=int(profile.unattending_bytes * self.compute_scale),
        )
        extras = tuple(_auxiliary_usage_of(self.auxiliary, profile))
        tied_bytes = profile.tied_bytes + sum(extra.tied_bytes for extra in extras)
        return replace(profile, extras=extras, tied_bytes=tied_bytes)

    @property
    def min_ubatch(self) -> int:
        """The smallest micro-batch that takes a picture whole; 0 where none has to be."""
        return self.auxiliary.projector.min_ubatch if self.auxiliary.projector else 0

    def bounded_ubatch(self, run_config: RunConfig) -> int:
        """Return the micro-batch of `run_config`, or one whose attention scores take less memory; a picture that is
        computed as a whole fits into it."""
        shape = graph_shape_of(self.header)
        n_ubatch = bounded_ubatch(shape, run_config.n_cells, run_config.n_ubatch, is_fused=run_config.is_fused)
        return max(n_ubatch, self.min_ubatch)

    def quantized(self, file_type: FileType) -> PlannedModel:
        """Return the same model as `localllm quantize` would make it; the offsets of tensors stay unchanged."""
        mix = [MixTensor(tensor.name, tensor.shape or (1,), TENSOR_TYPES[tensor.type_id]) for tensor in self.tensors]
        targets = {name: verdict.target for name, verdict in assign(mix, file_type, model_shape(self.header)).items()}
        quantized = (
            replace(tensor, type_id=target.type_id, n_bytes=target.tensor_bytes(tensor.shape))
            for tensor in self.tensors
            for target in (targets[tensor.name],)
        )
        return replace(self, tensors=tuple(quantized))

    def resized(self, n_bytes: int) -> PlannedModel:
        """Return the same model with tensors of `n_bytes` together, each its share, in unknown types."""
        scale = n_bytes / self.n_bytes
        resized = (replace(tensor, n_bytes=max(1, round(tensor.n_bytes * scale))) for tensor in self.tensors)
        return replace(self, tensors=tuple(resized))

    def measured(self, run_config: RunConfig, compute_bytes: int) -> PlannedModel:
        """Return the same model when a dry run under `run_config` took `compute_bytes`."""
        predicted = profile_of(self.header, self._weights, run_config).compute_bytes
        return replace(self, compute_scale=compute_bytes / predicted if predicted else 1.0)


_MIN_N_CTX, _MAX_ROWS = 2048, 10


@dataclass(frozen=True, slots=True)
class KvRow:
    """Bytes of a cache of `n_ctx` tokens by the name of its type, states included."""

    n_ctx: int
    n_bytes: Mapping[str, int]


def kv_table(model: PlannedModel, n_sequences: int) -> tuple[KvRow, ...]:
    """Return a row for every doubling of the context, up to that of training; only types that the model can have."""
    caches, shape = layer_caches_of(model.header), model.kv_shape
    types = [kv_types for name in KV_TYPES if supports_kv_types(kv_types := KvTypes(name, name), shape)]
    places = n_cached_sequences(caches, n_sequences)
    rows_of_states = n_states(
        n_sequences,
        supports_truncation=supports_truncation(caches),
        architecture=model.header.architecture,
        n_ubatch=DEFAULT_N_UBATCH,
    )
    rows = []
    for n_ctx in _contexts(model.n_ctx_train):
        cells = replace(cells_for(caches, n_ctx, n_sequences=places), n_sequences=rows_of_states)
        rows.append(KvRow(n_ctx, {str(kv_types): sum(cache_layers(caches, kv_types, cells)) for kv_types in types}))
    return tuple(rows)


def _contexts(n_ctx_train: int) -> list[int]:
    doublings = [_MIN_N_CTX << power for power in range(_MAX_ROWS)]
    return [*(n_ctx for n_ctx in doublings if n_ctx < n_ctx_train), n_ctx_train or _MIN_N_CTX]


def _head_run(run_config: RunConfig) -> RunConfig:
    """Return how a draft head runs beside a model: in batches of its own, with cells for the drafts."""
    n_cells = run_config.n_cells + run_config.n_sequences * DRAFT_CELLS
    n_ubatch = max(HEAD_BATCH, n_seq_max(run_config.n_sequences, supports_truncation=True))
    return replace(run_config, n_cells=n_cells, n_ubatch=n_ubatch)


def _auxiliary_usage_of(auxiliary: AuxiliaryModels, profile: ModelProfile) -> Iterator[AuxiliaryUsage]:
    """Yield the memory of each of the `auxiliary` models beside the model of `profile`, which includes their layers.

    Raises UsageError for a draft model that cannot have the model's kind of cache.
    """
    if auxiliary.draft is not None:  # the engine makes it a context of the same size
        weights = weights_of(auxiliary.draft.header, auxiliary.draft.tensors)
        is_head = auxiliary.draft.header.architecture in DRAFT_HEADS
        run_config = _head_run(profile.run_config) if is_head else profile.run_config
        draft = profile_of(auxiliary.draft.header, weights, run_config)
        yield AuxiliaryUsage(
            what=f"draft {'head' if is_head else 'model'} {auxiliary.draft.name}",
            weight_bytes=draft.weight_bytes - draft.input_bytes,
            cache_bytes=draft.cache_bytes,
            compute_bytes=draft.compute_bytes,
            host_bytes=draft.input_bytes + draft.host_bytes - ENGINE_BYTES,
            tied_bytes=draft.tied_bytes,
        )
    if auxiliary.has_mtp_layer:  # its context has a layer and buffers of its own
        layer = profile.layers[-2]
        yield AuxiliaryUsage(
            what="prediction layer",
            weight_bytes=layer.weight_bytes,
            cache_bytes=layer.cache_bytes,
            compute_bytes=profile.compute_bytes,
            host_bytes=profile.host_bytes - ENGINE_BYTES,
            is_in_layers=True,
        )
    for adapter in auxiliary.adapters:
        yield AuxiliaryUsage(what=f"adapter {adapter.name}", weight_bytes=adapter.n_bytes, is_in_layers=True)
    if auxiliary.projector is not None:
        yield _projector_usage(auxiliary.projector)


def _projector_usage(projector: PlannedProjector) -> AuxiliaryUsage:
    compute_bytes = projector.compute_bytes + projector.excess_bytes
    if projector.is_on_host:
        n_bytes = projector.n_bytes + compute_bytes + projector.host_bytes
        return AuxiliaryUsage(
            what=f"projector {projector.name}, on the processor", host_bytes=n_bytes, projector=projector
        )
    return AuxiliaryUsage(
        what=f"projector {projector.name}",
        projector=projector,
        weight_bytes=projector.n_bytes,
        compute_bytes=compute_bytes,
        host_bytes=projector.host_bytes,
    )
