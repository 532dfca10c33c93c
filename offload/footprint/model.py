"""What another quantization would make of a model's tensors, from its header alone.

Owns the change of types, and of sizes alone where only those are known. Independent of how tensors are converted.

How many bytes each companion of a model takes under a setting. Pure.

Owns the sums. Independent of devices.

A model to plan for: its header and the tensors of all its files.

Owns what is asked of it: a profile under a setting, the same model in another quantization. Independent of machines.

How large a model's cache is, by context and type. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from offload.footprint.auxiliary_models import NO_AUXILIARY_MODELS, AuxiliaryModels, AuxiliaryUsage
from offload.footprint.kv_cache import KV_TYPES, KvTypes, cache_layers, can_have, cells_for
from offload.footprint.profile import ENGINE_BYTES, ModelProfile, RunConfig, profile_of
from offload.footprint.weights import WeightTable, weights_of
from quantizer.convert.gguf_source import model_shape
from quantizer.gguf.file_types import FileType
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.layer_caches import KvShape, kv_shape_of, layer_caches_of
from quantizer.gguf.tensor_types import tensor_type
from quantizer.mix.recipe import MixTensor, assign

__all__ = ["KvRow", "PlannedModel", "auxiliary_usage_of", "kv_table", "quantized", "resized"]


def quantized(header: Header, tensors: Sequence[TensorInfo], file_type: FileType) -> tuple[TensorInfo, ...]:
    """Return `tensors` as `localllm quantize` would store them under `file_type`; offsets are left as they were."""
    mix = [MixTensor(tensor.name, tensor.shape or (1,), tensor_type(tensor.type_id)) for tensor in tensors]
    verdicts = assign(mix, file_type, model_shape(header))
    return tuple(
        replace(tensor, type_id=target.type_id, n_bytes=target.tensor_bytes(tensor.shape))
        for tensor in tensors
        for target in (verdicts[tensor.name].target,)
    )


def resized(tensors: Sequence[TensorInfo], n_bytes: int) -> tuple[TensorInfo, ...]:
    """Return `tensors` as if all of them together took `n_bytes`, each its share."""
    scale = n_bytes / sum(tensor.n_bytes for tensor in tensors)
    return tuple(replace(tensor, n_bytes=max(1, round(tensor.n_bytes * scale))) for tensor in tensors)


def auxiliary_usage_of(companions: AuxiliaryModels, profile: ModelProfile) -> tuple[AuxiliaryUsage, ...]:
    """Return what `companions` take beside the model of `profile`, which has their layers.

    Raises UsageError for a draft model that cannot have the model's kind of cache.
    """
    return tuple(extra for source in _SOURCES for extra in source(companions, profile))


def _draft(companions: AuxiliaryModels, profile: ModelProfile) -> Iterator[AuxiliaryUsage]:
    """Yield the engine makes it a context of the same size."""
    if companions.draft is not None:
        weights = weights_of(companions.draft.header, companions.draft.tensors)
        draft = profile_of(companions.draft.header, weights, profile.setting)
        yield AuxiliaryUsage(
            what=f"draft model {companions.draft.name}",
            weight_bytes=draft.weight_bytes - draft.input_bytes,
            cache_bytes=draft.cache_bytes,
            compute_bytes=draft.compute_bytes,
            host_bytes=draft.input_bytes + draft.host_bytes - ENGINE_BYTES,
            tied_bytes=draft.tied_bytes,
        )


def _head(companions: AuxiliaryModels, profile: ModelProfile) -> Iterator[AuxiliaryUsage]:
    """Yield its context has a layer of its own and buffers of its own."""
    if companions.has_mtp_layer:
        layer = profile.layers[-2]
        yield AuxiliaryUsage(
            what="prediction layer",
            weight_bytes=layer.weight_bytes,
            cache_bytes=layer.cache_bytes,
            compute_bytes=profile.compute_bytes,
            host_bytes=profile.host_bytes - ENGINE_BYTES,
            is_in_layers=True,
        )


def _adapters(companions: AuxiliaryModels, _profile: ModelProfile) -> Iterator[AuxiliaryUsage]:
    for adapter in companions.adapters:
        yield AuxiliaryUsage(what=f"adapter {adapter.name}", weight_bytes=adapter.n_bytes, is_in_layers=True)


def _projector(companions: AuxiliaryModels, _profile: ModelProfile) -> Iterator[AuxiliaryUsage]:
    if companions.projector is not None:
        yield AuxiliaryUsage(what=f"projector {companions.projector.name}", weight_bytes=companions.projector.n_bytes)


_SOURCES: tuple[Callable[[AuxiliaryModels, ModelProfile], Iterator[AuxiliaryUsage]], ...] = (
    _draft,
    _head,
    _adapters,
    _projector,
)


@dataclass(frozen=True)
class PlannedModel:
    """`header` is that of the first file, `tensors` are those of all.

    `compute_scale` is what a dry run found the formula of compute buffers to be off by.
    """

    header: Header
    tensors: tuple[TensorInfo, ...]
    compute_scale: float = 1.0
    companions: AuxiliaryModels = NO_AUXILIARY_MODELS

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that it was trained on, 0 where the file does not say."""
        return hyperparameter(self.header, "context_length")

    @property
    def kv_shape(self) -> KvShape:
        """What a token leaves in its cache."""
        return kv_shape_of(self.header)

    @cached_property
    def _weights(self) -> WeightTable:
        """Its weights with those of adapters, whatever the setting."""
        tensors = (*self.tensors, *self.companions.adapter_tensors)
        return weights_of(self.header, tensors, has_mtp_layer=self.companions.has_mtp_layer)

    def profile(self, setting: RunConfig) -> ModelProfile:
        """Return what it takes under `setting`. Raises UsageError for a cache it cannot have."""
        profile = profile_of(self.header, self._weights, setting, has_mtp_layer=self.companions.has_mtp_layer)
        profile = replace(
            profile,
            compute_bytes=int(profile.compute_bytes * self.compute_scale),
            inner_compute_bytes=int(profile.inner_compute_bytes * self.compute_scale),
        )
        extras = auxiliary_usage_of(self.companions, profile)
        tied_bytes = profile.tied_bytes + sum(extra.tied_bytes for extra in extras)
        return replace(profile, extras=extras, tied_bytes=tied_bytes)

    def quantized(self, file_type: FileType) -> PlannedModel:
        """Return the same model as `localllm quantize` would make it."""
        return replace(self, tensors=quantized(self.header, self.tensors, file_type))

    def resized(self, n_bytes: int) -> PlannedModel:
        """Return the same model where its tensors take `n_bytes`, in types that are not known."""
        return replace(self, tensors=resized(self.tensors, n_bytes))

    def measured(self, setting: RunConfig, compute_bytes: int) -> PlannedModel:
        """Return the same model when a dry run under `setting` took `compute_bytes`."""
        predicted = profile_of(self.header, self._weights, setting).compute_bytes
        return replace(self, compute_scale=compute_bytes / predicted if predicted else 1.0)


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
