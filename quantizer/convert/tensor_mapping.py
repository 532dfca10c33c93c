"""From a checkpoint's tensors to llama.cpp's: each is placed once, or ignored by name, in the required shape.

Names come from gguf's own map, and where a newer llama.cpp has more from the architecture's entry, as everything else
does. No weight is read.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np

from quantizer.architectures import Architecture, generated_tensors, needed_tensors
from quantizer.architectures.shapes import Stack, n_all_layers, resolve_shapes, usual_name
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.packed.methods import check_stored
from quantizer.convert.derived_tensors import (
    ExtendedTensor,
    MappedNumbers,
    MappedTensor,
    ReorderedColumns,
    ScaledRows,
    StackedTensor,
    TransposedTensor,
    ZeroExtendedTensor,
    rearrange_rows,
)
from quantizer.convert.source_model import FileTensor, RearrangedTensor, RenamedTensor, SourceTensor

# what the language model of one that also sees has in its names
_LANGUAGE_MODEL = "language_model."
_PREDICTION_KINDS = "NEXTN_"  # beginning of gguf's names for what only the layer that predicts further has
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.")
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS

_Origin: TypeAlias = (
    FileTensor
    | ExtendedTensor
    | MappedTensor
    | RearrangedTensor
    | StackedTensor
    | TransposedTensor
    | ZeroExtendedTensor
)
_Tensor = TypeVar("_Tensor")


def map_tensors(
    tensors: Mapping[str, FileTensor], config: Config, architecture: Architecture
) -> dict[str, SourceTensor]:
    """Return llama.cpp's name -> tensor, in the order of the file. Raises CheckpointError naming a tensor without a
    place, one that is missing, or one of another shape."""
    named = _without_ignored(tensors, config, architecture)
    for stack in architecture.layout.stacks:
        named = _stacked(named, stack, config)
    named = _split(named, config, architecture)
    names, needed = _name_map(architecture, config), needed_tensors(architecture, config)
    placed: dict[str, SourceTensor] = {}
    for name, tensor in named.items():
        kind, new_name = _find(name, names, (".weight", ".bias", *architecture.names.suffixes))
        # the same numbers in another shape; a wrong count is reported by the check of shapes
        shape = needed.get(new_name) if kind in architecture.layout.reshaped else None
        if shape is not None and isinstance(tensor, FileTensor) and math.prod(shape) == math.prod(tensor.shape):
            tensor = replace(tensor, shape=shape)
        _put(placed, new_name, _placed(tensor, new_name, kind, config, architecture))
    for generated in generated_tensors(architecture, config):
        _put(placed, generated.name, generated)
    output = {"output.weight": "token_embd.weight"} if architecture.tensors.needs_output else {}
    for new_name, lender in {**architecture.tensors.borrowed(config), **output}.items():
        if new_name not in placed and lender in placed:
            placed[new_name] = RenamedTensor(placed[lender], new_name)
    _check_shapes(placed, needed, resolve_shapes(architecture.tensors.optional(config), config))
    return {name: placed[name] for name in sorted(placed, key=_file_order)}


def _put(tensors: dict[str, _Tensor], name: str, tensor: _Tensor) -> None:
    if name in tensors:
        raise CheckpointError(f"Two tensors of the checkpoint would become {name}.", "Download it again.")
    tensors[name] = tensor


def _without_ignored(
    tensors: Mapping[str, FileTensor], config: Config, architecture: Architecture
) -> dict[str, _Origin]:
    """Return the tensors of the language model, by their names in a checkpoint that is nothing else."""
    is_tied = config.flag("tie_word_embeddings") is True
    kept: dict[str, _Origin] = {}
    for source_name, tensor in tensors.items():
        name = source_name.replace(_LANGUAGE_MODEL, "", 1) if architecture.names.skipped_modules else source_name
        name = architecture.names.renamed(name)
        if architecture.names.n_prediction_layers:
            name = usual_name(name, config.integer("num_hidden_layers"))
        is_tower = name.removeprefix("model.").startswith(architecture.names.skipped_modules)
        is_computed = name.endswith(architecture.names.ignored) or (is_tied and name == "lm_head.weight")
        layer = _LAYER.match(name)
        is_later = layer and architecture.names.leaves_later_layers and int(layer[1]) >= n_all_layers(config)
        if not (is_tower or is_computed or is_later or name.startswith(architecture.names.unused)):
            if name not in architecture.layout.number_maps:
                check_stored(tensor)
            _put(kept, name, tensor)
    return kept


def _stacked(tensors: Mapping[str, _Origin], stack: Stack, config: Config) -> dict[str, _Origin]:
    numbered = re.compile(rf"(.*){re.escape(stack.container)}(0|[1-9]\d{{0,5}})\.(.*)")
    parts: dict[str, dict[int, FileTensor]] = defaultdict(dict)
    whole: dict[str, _Origin] = {}
    for name, tensor in tensors.items():
        match = numbered.fullmatch(name)
        if match and isinstance(tensor, FileTensor):
            parts[f"{match[1]}{stack.merged}{match[3]}"][int(match[2])] = tensor
        else:
            whole[name] = tensor
    for name, found in parts.items():
        _put(whole, name, _stack(name, found, stack.count(config)))
    return whole


def _stack(name: str, parts: Mapping[int, FileTensor], n_parts: int) -> StackedTensor:
    missing = next((i for i in range(n_parts) if i not in parts), None)
    if missing is not None:
        raise CheckpointError(f"Part {missing} of {name} is missing.", "Download the whole checkpoint.")
    if len(parts) > n_parts:
        raise CheckpointError(
            f"{name} has {len(parts)} parts, but config.json implies {n_parts}.", "Check config.json."
        )
    return StackedTensor(name, tuple(parts[i] for i in range(n_parts)))


def _split(tensors: Mapping[str, _Origin], config: Config, architecture: Architecture) -> dict[str, _Origin]:
    parts: dict[str, _Origin] = {}
    for name, tensor in tensors.items():
        ending = next((ending for ending in architecture.layout.splits if name.endswith(ending)), None)
        if ending is None or not isinstance(tensor, FileTensor):
            _put(parts, name, tensor)
            continue
        for part_ending, cut in architecture.layout.splits[ending].items():
            part_name = name.removesuffix(ending) + part_ending
            _put(parts, part_name, cut(tensor, part_name, config))
    return parts


@lru_cache(8)
def _names_of_gguf(architecture: str, n_layers: int) -> Mapping[str, tuple[str, str]]:
    """Return gguf's map for an architecture: source name -> kind and llama.cpp's name."""
    import gguf  # slow to import, needed for conversion only

    # its constructor changes a table of its class, so it gets a copy
    table = {"block_mappings_cfg": dict(gguf.TensorNameMap.block_mappings_cfg)}
    private = type("PrivateNameMap", (gguf.TensorNameMap,), table)
    by_name = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    known = private(by_name[architecture], n_layers).mapping
    return {name: (kind.name, new_name) for name, (kind, new_name) in known.items()}


def _name_map(architecture: Architecture, config: Config) -> dict[str, tuple[str, str]]:
    """Return source name -> kind and llama.cpp's name, both names without endings: gguf's map, then the entry's own."""
    import gguf

    n_layers, n_all = config.integer("num_hidden_layers"), n_all_layers(config)
    map_of = architecture.names.map_of or architecture.gguf_name
    names = dict(_names_of_gguf(map_of, max(n_all, architecture.names.n_numbered)))
    for kind, found in gguf.TensorNameMap.block_mappings_cfg.items():  # of prediction it lists some architectures' only
        if kind.name.startswith(_PREDICTION_KINDS):
            new_names = {i: gguf.TENSOR_NAMES[kind].format(bid=i) for i in range(n_layers, n_all)}
            names |= {name.format(bid=i): (kind.name, new) for i, new in new_names.items() for name in found}
    for name, new_name in architecture.names.own.items():
        for layer in range(n_all if "{bid}" in new_name else 1):
            names[name.format(bid=layer)] = (new_name, new_name.format(bid=layer))
    return names


def _find(name: str, names: Mapping[str, tuple[str, str]], endings: Iterable[str]) -> tuple[str, str]:
    for ending in ("", *endings):
        if name.endswith(ending) and name.removesuffix(ending) in names:
            kind, new_name = names[name.removesuffix(ending)]
            return kind, new_name + ending
    raise CheckpointError(f"gguf has no name for the tensor {name[:128]!r} in this architecture.", "Report the model.")


def _placed(tensor: _Origin, name: str, kind: str, config: Config, architecture: Architecture) -> SourceTensor:
    row_order = architecture.layout.row_orders.get(kind)
    values = None if name.endswith(".bias") else architecture.layout.value_maps.get(kind)
    if kind in architecture.layout.number_maps:
        return MappedNumbers(tensor, name, architecture.layout.number_maps[kind], config)
    if row_order is not None and isinstance(tensor, FileTensor):
        tensor = rearrange_rows(tensor, name, row_order, config)
    if kind in architecture.layout.column_orders:
        return ReorderedColumns(tensor, name, architecture.layout.column_orders[kind](config, tensor.shape[0]))
    placed = replace(tensor, name=name) if values is None else MappedTensor(tensor, name, values)
    if kind in architecture.layout.row_factors:
        n_rows = math.prod(tensor.shape[1:])
        factors = np.broadcast_to(architecture.layout.row_factors[kind](config, n_rows), n_rows)
        return ScaledRows(placed, name, factors) if np.any(factors != 1) else placed
    return placed


def _file_order(name: str) -> tuple[int, int, str]:
    """Return the sort key of output tensors: embedding first, then layer by layer, then what follows the last layer."""
    layer = re.match(r"(?:[av]\.)?blk\.(\d+)\.", name)
    if layer:
        return (1, int(layer[1]), name)
    return (2 if name.startswith("output") else 0, 0, name)


def _check_shapes(
    tensors: Mapping[str, SourceTensor], needed: Mapping[str, tuple[int, ...]], optional: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise CheckpointError unless every needed tensor is there in its shape, and none is larger than ggml allows."""
    missing = [name for name in needed if name not in tensors]
    if missing:
        others = f" and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
        raise CheckpointError(f"The checkpoint lacks {missing[0]}{others}.", "Download the whole checkpoint.")
    for name, tensor in tensors.items():
        if (n := len(tensor.shape)) > _MAX_DIMENSIONS:
            cause = f"The tensor {name} has {n} dimensions; llama.cpp supports at most {_MAX_DIMENSIONS}."
            raise CheckpointError(cause, "Download the checkpoint again.")
    for name, shape in {**optional, **needed}.items():
        if name in tensors and tensors[name].shape != shape:
            raise CheckpointError(
                f"The tensor {name} is {_times(tensors[name].shape)}, but config.json implies {_times(shape)}.",
                "Download the checkpoint again.",
            )


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, reversed(shape)))
