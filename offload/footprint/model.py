"""A model to plan for, and its memory under a run configuration: bytes stored and bytes read per token, layer by layer.

Independent of devices, and of how tensors are converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path

from offload.footprint.auxiliary_models import (
    CACHELESS_HEADS,
    DRAFT_HEADS,
    HEAD_BATCH,
    NO_AUXILIARY_MODELS,
    AuxiliaryModels,
    AuxiliaryUsage,
    only_predicts,
)
from offload.footprint.kv_cache import (
    DRAFT_CELLS,
    KV_TYPES,
    CacheCells,
    KvTypes,
    cache_layers,
    cells_for,
    check_kv_types,
    n_cached_sequences,
    n_holds,
    n_seq_max,
    n_states,
    prediction_cache_bytes,
    supports_kv_types,
    supports_truncation,
)
from offload.footprint.weights import (
    Layer,
    WeightTable,
    bounded_ubatch,
    compute_bytes,
    graph_shape_of,
    most_outputs,
    output_bytes,
    selecting_bytes,
    weights_of,
)
from offload.speed.cost_model import HOST_FACTORS, TYPICAL_TURN, attention_bytes, attention_works, prompt_operations
from offload.speed.type_costs import DEFAULT_LAYOUT, NO_WORK, WeightLayout, copy_bytes, in_layout, summed, type_of
from quantizer.convert.source_model import model_shape
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.layer_caches import KvShape, LayerCaches, kv_shape_of, layer_caches_of
from quantizer.gguf.tensor_types import TENSOR_TYPES, FileType
from quantizer.gguf.validation import tensors_of, validate_gguf
from quantizer.mix.type_rules import MixTensor, assign

# Of the engine's process: Python, libraries, vocabulary, and texts of projects that drafts are looked up in (28 MB at
# most). SmolLM2's takes 109 MiB beside its file and without such texts, cells and buffers included.
ENGINE_BYTES = 150 << 20
_FLOAT_BYTES = 4
DEFAULT_N_UBATCH = 512  # tokens computed at once
DEFAULT_DEPTH = 512  # tokens before the one whose speed is predicted
DEFAULT_N_PROMPT = TYPICAL_TURN.n_prompt  # tokens of the prompt whose speed is predicted
_MOST_UBATCH = 2048
_F16 = KvTypes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration of a run. All sequences share `n_cells`, and `n_sequences` of them are served at once. `depth`
    is the number of tokens before the one whose speed is predicted, `n_prompt` the length of the prompt whose speed is
    predicted; `layout` says which weights the processor repacks. At most `n_outputs` tokens of a step have logits, 0 is
    no limit. With `has_lazy_tables` per-layer embeddings stay in the file: a row is read when a token needs it. Only a
    request for a plan leaves `n_ctx` or `n_cells` open with 0, or has `gpu_layers`: layers by GPU name, the output
    counted as one; None leaves them to the planner."""

    n_ctx: int = 0
    n_cells: int = 0
    kv_types: KvTypes = _F16
    n_sequences: int = 1
    n_ubatch: int = DEFAULT_N_UBATCH
    n_outputs: int = 0
    depth: int = DEFAULT_DEPTH
    n_prompt: int = DEFAULT_N_PROMPT
    is_fused: bool = True
    layout: WeightLayout = DEFAULT_LAYOUT
    has_lazy_tables: bool = False
    gpu_layers: Mapping[str, int] | None = None


DEFAULT_RUN = RunConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model under one configuration. `layers` end with the output; layers that only predict count, as in llama.cpp.
    `input_bytes` always lie with the processor; `tied_bytes` lie a second time on the device of the output, which takes
    `compute_bytes`; every other device that has a layer takes `inner_compute_bytes`, for it makes no logits. GPUs whose
    cache lies with the processor do not attend: they take at most `unattending_bytes`. A GPU that computes prompts with
    weights of the processor's memory holds a copy of `fetched_bytes` at most, of `fetched_output_bytes` where the
    output lies there, and of a layer's `fetched_cache_bytes`. `prompt_operations` are what a processor that has all
    layers computes for a token in the middle of a prompt, by kind. `lazy_bytes` stay in the file, and count nowhere."""

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
    prompt_operations: Mapping[str, float] = field(default_factory=dict)
    fetched_bytes: int = 0
    fetched_output_bytes: int = 0
    lazy_bytes: int = 0
    fetched_cache_bytes: int = 0
    extras: tuple[AuxiliaryUsage, ...] = ()

    @property
    def weight_bytes(self) -> int:
        return self.input_bytes + sum(layer.weight_bytes for layer in self.layers)

    @property
    def cache_bytes(self) -> int:
        return sum(layer.cache_bytes for layer in self.layers)

    @property
    def beside_bytes(self) -> int:
        """Bytes of auxiliary models, once, on the device of the output."""
        return sum(extra.beside_bytes for extra in self.extras)

    @property
    def beside_host_bytes(self) -> int:
        """Bytes of auxiliary models that are the processor's wherever the layers go."""
        return sum(extra.host_bytes for extra in self.extras)

    def fetching_compute_bytes(self, *, has_layers: bool, has_output: bool, has_cache_on_host: bool) -> int:
        """Return the compute buffers of a GPU that computes prompts with weights of the processor's memory. Without
        layers of its own it computes the logits of a step with many of them, too."""
        own = self.compute_bytes if has_output or not has_layers else self.inner_compute_bytes
        inner, cache_bytes = self.inner_compute_bytes, self.fetched_cache_bytes
        if has_cache_on_host:
            own, inner, cache_bytes = min(own, self.unattending_bytes), min(inner, self.unattending_bytes), 0
        layers_bytes = inner + max(self.fetched_bytes, cache_bytes)
        return max(own if has_layers else own + self.fetched_output_bytes, layers_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes that the model takes where one device with the processor's memory has all of it."""
        own = self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes
        return own + self.beside_bytes + self.beside_host_bytes


def profile_of(
    header: Header, weights: WeightTable, run_config: RunConfig, *, has_mtp_layer: bool = False
) -> ModelProfile:
    """Return the memory of the model of `header` and its `weights`, with prediction layers where it `has_mtp_layer`.
    Raises UsageError where the model cannot have such a cache."""
    check_kv_types(run_config.kv_types, kv_shape_of(header))
    caches, shape = layer_caches_of(header), graph_shape_of(header)
    n_ubatch, places = run_config.n_ubatch, n_cached_sequences(caches, run_config.n_sequences)
    n_native = places + n_holds(run_config.n_sequences, supports_truncation=supports_truncation(caches))
    cells = cells_for(caches, run_config.n_cells, n_sequences=n_native, n_ubatch=n_ubatch)
    cells = replace(cells, n_sequences=n_states(caches, run_config.n_sequences, header.architecture, n_ubatch))
    kept = cache_layers(caches, run_config.kv_types, cells, is_fused=run_config.is_fused)
    if has_mtp_layer:
        head_cells = run_config.n_cells + run_config.n_sequences * DRAFT_CELLS
        own = prediction_cache_bytes(caches, run_config.kv_types, head_cells)
        kept = (*kept[: -len(own)], *map(sum, zip(kept[-len(own) :], own, strict=True)))
    seen = CacheCells(run_config.depth, min(run_config.depth, caches.n_window or run_config.depth), 1)
    used = replace(caches, has_idle_cells=False)
    read = cache_layers(used, run_config.kv_types, seen, is_fused=run_config.is_fused)
    attending = attention_works(header, caches, run_config.depth, is_fused=run_config.is_fused)
    attending = chain(attending, repeat(NO_WORK, caches.n_predicting))
    layers = [
        replace(
            layer,
            cache_bytes=n_kept,
            cache_read_bytes=n_read,
            attention_bytes=attention_bytes(work, is_fused=run_config.is_fused),
            attention=work,
        )
        for layer, n_kept, n_read, work in zip(weights.layers, kept, read, attending, strict=True)
    ]
    computing = partial(
        compute_bytes,
        shape,
        cells.n_full,
        n_ubatch=-(-n_ubatch // n_native) * n_native,  # llama.cpp reserves as many tokens for each sequence
        n_outputs=min(run_config.n_outputs or n_ubatch, n_ubatch),
        is_fused=run_config.is_fused,
    )
    n_prompt = min(run_config.n_prompt, run_config.n_ctx or run_config.n_prompt)
    inputs_bytes = shape.n_embd * n_ubatch * _FLOAT_BYTES
    lazy_bytes = weights.lazy_bytes if run_config.has_lazy_tables else 0
    return ModelProfile(
        layers=(*layers, weights.output),
        input_bytes=weights.input.weight_bytes - lazy_bytes,
        tied_bytes=weights.tied_bytes,
        compute_bytes=computing(),
        inner_compute_bytes=computing(has_output=False),
        unattending_bytes=computing(has_attention=False),
        host_bytes=output_bytes(shape, places) + inputs_bytes + ENGINE_BYTES,
        has_experts=weights.has_experts,
        is_exact=caches.is_complete,
        run_config=run_config,
        prompt_operations=_prompt_operations(header, weights, caches, n_prompt / 2, run_config),
        fetched_bytes=max((layer.largest_bytes for layer in layers), default=0),
        fetched_output_bytes=weights.output.largest_bytes,
        lazy_bytes=lazy_bytes,
        fetched_cache_bytes=max(kept, default=0),
    )


def _prompt_operations(
    header: Header, weights: WeightTable, caches: LayerCaches, depth: float, run_config: RunConfig
) -> dict[str, float]:
    n_elements = len(caches.main_layers) * graph_shape_of(header).layer_elements
    used = in_layout(summed(*(layer.weights for layer in weights.layers)), run_config.layout, run_config.n_ubatch)
    return prompt_operations(header, caches, used, n_elements, depth, is_fused=run_config.is_fused)


@dataclass(frozen=True)
class PlannedModel:
    """A model by the `header` of its first file and the `tensors` of all files.
    `compute_scale` corrects the formula of compute buffers by what a dry run measured."""

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
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def n_ctx_train(self) -> int:  # 0 where the file has none
        return hyperparameter(self.header, "context_length")

    @property
    def prompt_growth(self) -> float:
        """By which share of its time a token of a prompt takes longer on a processor for each token before it, behind
        so many that windows have ended. 0.00028 of SmolLM2 135M, measured 0.00027; of the guide 0.0010 and 0.0010."""
        caches = layer_caches_of(self.header)
        first, middle, last = (
            sum(
                count * HOST_FACTORS.get(type_of(kind), 1.0)
                for kind, count in _prompt_operations(self.header, self._weights, caches, depth, DEFAULT_RUN).items()
            )
            for depth in (0, caches.n_window, caches.n_window + 1)
        )
        return (last - middle) / first if first else 0.0

    @property
    def lazy_bytes(self) -> int:
        """Bytes of its tables that may stay in the file, to be read row by row."""
        return self._weights.lazy_bytes

    @property
    def kv_shape(self) -> KvShape:
        return kv_shape_of(self.header)

    @cached_property
    def _weights(self) -> WeightTable:
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
        n_predicting = hyperparameter(self.header, "nextn_predict_layers")
        extras = tuple(_auxiliary_usage_of(self.auxiliary, profile, n_predicting))
        tied_bytes = profile.tied_bytes + sum(extra.tied_bytes for extra in extras)
        if copied_bytes := copy_bytes(self.tensors, dict(run_config.layout.copies)):
            kinds = "/".join(sorted(set(dict(run_config.layout.copies).values())))
            extras = (*extras, AuxiliaryUsage(what=f"copy in {kinds} for prompts", host_bytes=copied_bytes))
        return replace(profile, extras=extras, tied_bytes=tied_bytes)

    @property
    def min_ubatch(self) -> int:
        """The smallest micro-batch that takes a picture whole; 0 where none has to be."""
        return self.auxiliary.projector.min_ubatch if self.auxiliary.projector else 0

    @property
    def max_ubatch(self) -> int:
        """The largest micro-batch that may be chosen: a draft model, or a head that reads the model's hidden states,
        takes the same one, and gains nothing."""
        has_draft = self.auxiliary.draft is not None or self.auxiliary.has_mtp_layer
        return DEFAULT_N_UBATCH if has_draft else _MOST_UBATCH

    def most_outputs(self, n_sequences: int) -> int:
        """Return how many tokens of a step may have logits where memory is planned; 0, no limit, beside heads, which
        read the hidden states of every token, and of models without answers."""
        n_vocab = graph_shape_of(self.header).n_logits
        has_draft = self.auxiliary.draft is not None or self.auxiliary.has_mtp_layer
        return 0 if has_draft or not n_vocab else most_outputs(n_vocab, n_sequences)

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
            TensorInfo(tensor.name, tensor.shape, target.type_id, tensor.offset, target.tensor_bytes(tensor.shape))
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
    rows_of_states = n_states(caches, n_sequences, model.header.architecture, DEFAULT_N_UBATCH)
    rows = []
    doublings = [_MIN_N_CTX << power for power in range(_MAX_ROWS)]
    longest = model.n_ctx_train or _MIN_N_CTX
    for n_ctx in (*(n_ctx for n_ctx in doublings if n_ctx < model.n_ctx_train), longest):
        cells = replace(cells_for(caches, n_ctx, n_sequences=places), n_sequences=rows_of_states)
        rows.append(KvRow(n_ctx, {str(kv_types): sum(cache_layers(caches, kv_types, cells)) for kv_types in types}))
    return tuple(rows)


def _auxiliary_usage_of(
    auxiliary: AuxiliaryModels, profile: ModelProfile, n_predicting: int
) -> Iterator[AuxiliaryUsage]:
    """Yield the memory of each of the `auxiliary` models beside the model of `profile`, which includes their layers and
    `n_predicting` of its own. Raises UsageError for a draft model that cannot have the model's kind of cache."""
    if auxiliary.draft is not None:  # the engine makes it a context of the same size
        architecture = auxiliary.draft.header.architecture
        is_cacheless = architecture in CACHELESS_HEADS  # all its layers predict, in cells of the model
        has_only_layers = only_predicts(auxiliary.draft.header)
        has_all = is_cacheless or has_only_layers
        weights = weights_of(auxiliary.draft.header, auxiliary.draft.tensors, has_mtp_layer=has_all)
        is_head = architecture in DRAFT_HEADS or has_only_layers
        run_config = profile.run_config
        if is_head:  # it runs in batches of its own, with cells for the drafts
            n_cells = run_config.n_cells + run_config.n_sequences * DRAFT_CELLS
            n_places = n_seq_max(run_config.n_sequences, supports_truncation=True)
            n_ubatch = -(-HEAD_BATCH // n_places) * n_places  # llama.cpp reserves as many tokens for each sequence
            run_config = replace(run_config, n_cells=n_cells, n_ubatch=n_ubatch)
        draft = profile_of(auxiliary.draft.header, weights, run_config)
        n_drafting = run_config.n_sequences * hyperparameter(auxiliary.draft.header, "block_size")
        selecting = selecting_bytes(graph_shape_of(auxiliary.draft.header), min(HEAD_BATCH, n_drafting))
        cache_bytes, n_contexts = draft.cache_bytes, 1
        if has_only_layers:  # a context each, like those in the model's file, and none of the layers before
            caches = layer_caches_of(auxiliary.draft.header)
            cache_bytes = sum(prediction_cache_bytes(caches, run_config.kv_types, run_config.n_cells))
            n_contexts, draft = caches.n_predicting, replace(draft, compute_bytes=profile.compute_bytes)
        yield AuxiliaryUsage(
            what=f"draft {'head' if is_head else 'model'} {auxiliary.draft.name}",
            weight_bytes=draft.weight_bytes - draft.input_bytes,
            cache_bytes=cache_bytes,
            compute_bytes=n_contexts * max(draft.compute_bytes, selecting),
            host_bytes=draft.input_bytes + n_contexts * (draft.host_bytes - ENGINE_BYTES),
            tied_bytes=draft.tied_bytes,
        )
    if auxiliary.has_mtp_layer:  # each has a context with buffers of its own
        layers = profile.layers[-1 - n_predicting : -1]
        yield AuxiliaryUsage(
            what="prediction layer" if n_predicting == 1 else f"{n_predicting} prediction layers",
            weight_bytes=sum(layer.weight_bytes for layer in layers),
            cache_bytes=sum(layer.cache_bytes for layer in layers),
            compute_bytes=n_predicting * profile.compute_bytes,
            host_bytes=n_predicting * (profile.host_bytes - ENGINE_BYTES),
            is_in_layers=True,
        )
    for adapter in auxiliary.adapters:
        yield AuxiliaryUsage(what=f"adapter {adapter.name}", weight_bytes=adapter.n_bytes, is_in_layers=True)
    if (projector := auxiliary.projector) is not None:
        weight_bytes, compute_bytes = projector.n_bytes, projector.compute_bytes + projector.excess_bytes
        usage = AuxiliaryUsage(what=f"projector {projector.name}", projector=projector, host_bytes=projector.host_bytes)
        if projector.is_on_host:
            n_bytes = usage.host_bytes + weight_bytes + compute_bytes
            yield replace(usage, what=f"{usage.what}, on the processor", host_bytes=n_bytes)
        else:
            yield replace(usage, weight_bytes=weight_bytes, compute_bytes=compute_bytes)
