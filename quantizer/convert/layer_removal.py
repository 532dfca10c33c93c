"""A model without some of its layers: which may go, and metadata and tensors of what remains, renumbered.

Owns what of a model belongs to single layers, and the architectures where llama.cpp lets a file say what each layer is.
Independent of how important a layer is. Source: `load_arch_hparams` in src/models and `load_swa_pattern` in
src/llama-model.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from quantizer.convert.source_model import RenamedTensor, SourceModel
from quantizer.gguf.gguf_reader import ARRAY, SCALAR_FORMATS
from quantizer.gguf.header import Entry, Header, encode_entry, encode_header, planned_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.layer_caches import LayerCaches, layer_caches_of
from quantizer.mix.imatrix import ImportanceMatrix
from quantizer.system.errors import UsageError

# Read in llama.cpp one by one: a layer of these is told apart only by what the file says of it. In others its number
# decides about experts, positions, inputs or the scale of the residual. fmt: off
_REMOVABLE = frozenset(
    [
        "apertus",
        "arcee",
        "bailingmoe",
        "bailingmoe2",
        "bitnet",
        "bloom",
        "cohere2",
        "command-r",
        "dbrx",
        "deci",
        "deepseek",
        "deepseek2",
        "dots1",
        "ernie4_5",
        "exaone",
        "exaone4",
        "falcon",
        "falcon-h1",
        "gemma",
        "gemma2",
        "gemma3",
        "glm4",
        "glm4moe",
        "gpt-oss",
        "gpt2",
        "gptneox",
        "granite",
        "granitehybrid",
        "granitemoe",
        "hunyuan-dense",
        "hunyuan-moe",
        "internlm2",
        "jamba",
        "lfm2",
        "lfm2moe",
        "llama",
        "mamba",
        "mamba2",
        "mistral3",
        "mpt",
        "nemotron",
        "nemotron_h",
        "nemotron_h_moe",
        "olmo",
        "olmo2",
        "olmoe",
        "openelm",
        "orion",
        "phi2",
        "phi3",
        "phimoe",
        "plm",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "seed_oss",
        "stablelm",
        "starcoder",
        "starcoder2",
        "xverse",
    ]
)
# fmt: on Depths by which llama.cpp takes a model for one that it computes in another way.
_TELLING_DEPTHS: Mapping[str, Collection[int]] = {
    "command-r": range(64, 513),
    "deepseek2": (26, 27, 47, 48),
    "exaone4": (64,),
    "gemma2": (46,),
    "gemma3": (62,),
}
_AT_INTERVALS = frozenset(["qwen35", "qwen35moe", "qwen3next"])  # a state in all layers but every fourth
_BLOCKS, _DENSE = "block_count", "leading_dense_block_count"
_WINDOWED, _RECURRENT = "attention.sliding_window_pattern", "attention.recurrent_layers"
_BY_LAYER = (
    *("attention.head_count", "attention.head_count_kv", "attention.rope_pattern", _RECURRENT, _WINDOWED),
    *("expert_feed_forward_length", "expert_used_count", "feed_forward_length", "swiglu_clamp_exp"),
    "swiglu_clamp_shexp",
)
_BY_LAYER_EVERYWHERE = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
_REMOVED = "localllm.removed_layers"
_ARRAY_HEAD = "<IQ"  # type and number of its elements
_LAYER = re.compile(r"blk\.(\d+)\.")


def n_layers_of(model: SourceModel) -> int:
    """Return the number of layers that compute every token; layers that predict several tokens stay."""
    return len(_caches(model).main_layers)


def check_removable(model: SourceModel, n_removed: int) -> None:
    """Raise UsageError where `n_removed` layers cannot be left out of `model`."""
    header, architecture = _hyperparameters(model), model.shape.architecture
    if architecture not in _REMOVABLE or hyperparameter(header, "n_deepstack_layers"):
        raise UsageError(
            f"Layers of {architecture} models cannot be removed: a layer's number decides what it computes.",
            "Omit --prune-layers, or choose a model of another family.",
        )
    n_layers = n_layers_of(model)
    telling = _TELLING_DEPTHS.get(architecture, ())
    if n_layers in telling or n_layers - n_removed in telling:
        raise UsageError(
            f"llama.cpp treats a {architecture} model with {n_layers - n_removed} layers differently from one with"
            f" {n_layers}.",
            "Choose another --prune-layers, or a model of another size.",
        )
    n_kinds = len(set(_kinds(model)))
    if n_removed > (most := n_layers - n_kinds):
        one = "one layer" if n_kinds == 1 else "one layer of each kind"
        raise UsageError(
            f"{n_removed} of {n_layers} layers cannot be removed: {one} must stay.",
            f"Use at most --prune-layers {most}." if most else "Omit --prune-layers.",
        )


def layers_to_remove(model: SourceModel, distances: Sequence[float], n_removed: int) -> tuple[int, ...]:
    """Return the `n_removed` layers that change their input least, in order; the last of a kind stays. `distances` has
    one number for each layer that computes every token. Raises UsageError as `check_removable` does."""
    check_removable(model, n_removed)
    kinds = _kinds(model)
    left = Counter(kinds)
    removed: list[int] = []
    for layer in sorted(range(len(kinds)), key=lambda layer: distances[layer]):
        if len(removed) < n_removed and left[kinds[layer]] > 1:
            left[kinds[layer]] -= 1
            removed.append(layer)
    return tuple(sorted(removed))


def without_layers(model: SourceModel, removed: Collection[int]) -> SourceModel:
    """Return `model` without the layers `removed`, the others renumbered. Raises UsageError as `check_removable`."""
    check_removable(model, len(set(removed)))
    n_all = hyperparameter(_hyperparameters(model), _BLOCKS)
    if not set(removed) <= set(range(n_layers_of(model))):
        raise UsageError(f"{model.name} has layers 0 to {n_layers_of(model) - 1}.", "Leave out some of these.")
    names = {tensor.name: _renumbered(tensor.name, removed) for tensor in model.tensors}
    kept = iter([name is not None for name in names.values()])
    layers = ", ".join(map(str, sorted(removed)))
    return replace(
        model,
        entries=tuple(_entries(model, removed)),
        tensors=[
            tensor if tensor.name == name else RenamedTensor(tensor, name)
            for tensor in model.tensors
            if (name := names[tensor.name])
        ],
        shape=replace(model.shape, n_layers=n_all - len(removed)),
        unquantized={new: kind for name, kind in model.unquantized.items() if (new := names.get(name))},
        # files of which no tensor stays are left out
        shard_counts=tuple(n for count in model.shard_counts if (n := sum(islice(kept, count)))),
        warnings=(*model.warnings, f"Layers left out (of {n_all}): {layers}. `localllm eval` measures the loss."),
    )


def matrix_without_layers(matrix: ImportanceMatrix, removed: Collection[int]) -> ImportanceMatrix:
    """Return the importance matrix of the whole model as one of the model without the layers `removed`."""
    names = {name: _renumbered(name, removed) for name in matrix.entries}
    return replace(matrix, entries={new: matrix.entries[name] for name, new in names.items() if new})


def _renumbered(name: str, removed: Collection[int]) -> str | None:
    """Return what the tensor `name` is called without the layers `removed`, None for one of theirs."""
    match = _LAYER.match(name)
    if match is None:
        return name
    layer = int(match[1])
    if layer in removed:
        return None
    return f"blk.{layer - sum(other < layer for other in removed)}.{name[match.end() :]}"


def _hyperparameters(model: SourceModel) -> Header:
    """Return a header with the metadata of `model` but for its vocabulary, and without tensors."""
    head = encode_header([entry for entry in model.entries if not entry.key.startswith("tokenizer.")], [])
    return planned_header(head, len(head), Path(f"{model.name}.gguf"))


def _caches(model: SourceModel) -> LayerCaches:
    return layer_caches_of(_hyperparameters(model))


def _kinds(model: SourceModel) -> list[Hashable]:
    """Return what distinguishes layers: the names of their tensors, and whether they have a window."""
    layers = _caches(model).main_layers
    names: list[set[str]] = [set() for _ in layers]
    for tensor in model.tensors:
        match = _LAYER.match(tensor.name)
        if match and int(match[1]) < len(layers):
            names[int(match[1])].add(tensor.name[match.end() :])
    return [(frozenset(own), layer.is_windowed) for own, layer in zip(names, layers, strict=True)]


def _entries(model: SourceModel, removed: Collection[int]) -> Iterator[Entry]:
    """Yield the metadata of what remains; what each layer is becomes a list where it followed from its number."""
    prefix = f"{model.shape.architecture}."
    header, caches = _hyperparameters(model), _caches(model)
    stays = [layer not in removed for layer in range(hyperparameter(header, _BLOCKS))]
    n_dense = hyperparameter(header, _DENSE) - sum(layer < hyperparameter(header, _DENSE) for layer in removed)
    by_layer = {*(prefix + suffix for suffix in _BY_LAYER), *_BY_LAYER_EVERYWHERE}
    replaced = [encode_entry(prefix + _BLOCKS, sum(stays), "u32")]
    if prefix + _DENSE in header.fields:
        replaced.append(encode_entry(prefix + _DENSE, n_dense, "u32"))
    flags = {
        _WINDOWED: [layer.is_windowed for layer in caches.layers] if caches.n_window else [],
        _RECURRENT: [layer.state_elements > 0 for layer in caches.layers]
        if model.shape.architecture in _AT_INTERVALS
        else [],
    }
    for suffix, values in flags.items():
        if values:
            remaining = [value for value, is_kept in zip(values, stays, strict=True) if is_kept]
            replaced.append(encode_entry(prefix + suffix, remaining, "bool[]"))
    replaced.append(encode_entry(_REMOVED, sorted(removed), "u32[]"))
    dropped = {"general.size_label", *(entry.key for entry in replaced)}
    for entry in model.entries:
        if entry.key not in dropped:
            yield _cut(entry, stays) if entry.key in by_layer and entry.type_id == ARRAY else entry
    yield from replaced


def _cut(entry: Entry, stays: Sequence[bool]) -> Entry:
    """Return the list `entry` without the values of removed layers; prediction layers may have none."""
    element_type, count = struct.unpack_from(_ARRAY_HEAD, entry.payload)
    width = struct.calcsize(SCALAR_FORMATS[element_type])
    values = entry.payload[struct.calcsize(_ARRAY_HEAD) :]
    kept = [index for index in range(count) if index >= len(stays) or stays[index]]
    data = b"".join(values[index * width : (index + 1) * width] for index in kept)
    return Entry(entry.key, ARRAY, struct.pack(_ARRAY_HEAD, element_type, len(kept)) + data)
