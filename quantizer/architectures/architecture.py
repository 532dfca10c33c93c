"""An entry of the table of architectures: everything that converting one HF class takes, as data; and the check of a
config.json against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from quantizer.architectures.shapes import Dimensions, LayerTensors, Stack, decoder
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, NumberMap, RowFactors, RowOrder, ValueMap
from quantizer.convert.source_model import SourceTensor

Value: TypeAlias = int | float | str | bool | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One metadata row: `key` follows "<architecture>."; `value` may be a function of the config. None: no row."""

    key: str
    type_name: str
    value: Callable[[Config], Value] | Value

    def read(self, config: Config) -> Value:
        return self.value(config) if callable(self.value) else self.value


@dataclass(frozen=True, slots=True)
class RequiredTensors:
    """The tensors of a GGUF, with their shapes: those that must be there, and those that no checkpoint has."""

    layer: LayerTensors
    # outside the layers
    model: Callable[[Config], Dimensions] = decoder
    # those that may be missing
    optional: Callable[[Config], Dimensions] = lambda _config: {}
    # tensors that llama.cpp reads although it does not use them -> those that are written where a checkpoint lacks them
    borrowed: Callable[[Config], Mapping[str, str]] = lambda _config: {}
    # whether llama.cpp reads an output of its own even where it is tied to the embeddings: then it is written twice
    needs_output: bool = False
    # computed ones; None: none, and a rope scaling that needs some is refused
    generate: Callable[[Config], Sequence[SourceTensor]] | None = None


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Which tensors of a checkpoint are used, and how their names become those of gguf's map."""

    # removed from the beginning: the name of the body in a class with a head
    prefix: str = ""
    # regular expressions of source names -> their replacements, one after the other
    renames: Mapping[str, str] = field(default_factory=dict)
    # endings of tensors that the runtime computes itself
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
    # beginnings, without the prefix, of tensors for training only
    unused: tuple[str, ...] = ()
    # beginnings of the parts that see or hear, which do not belong to the language model
    skipped_modules: tuple[str, ...] = ()
    # whether layers beyond the last, which predict further tokens, are left out
    leaves_later_layers: bool = False
    # how many of them llama.cpp runs: they stay where there are no more
    n_prediction_layers: int = 0
    # the architecture whose names are looked up where gguf's map lacks this one
    map_of: str = ""
    # names that gguf's map lacks too: of the source -> of llama.cpp, {bid} being the number of the layer
    own: Mapping[str, str] = field(default_factory=dict)
    # endings of llama.cpp's names beyond .weight and .bias
    suffixes: tuple[str, ...] = ()
    # what llama.cpp's names of a layer's tensors begin with, before its number
    blocks: str = "blk"
    # numbers that names may have, where there are fewer layers
    n_numbered: int = 0

    def renamed(self, name: str) -> str:
        """Return what a tensor of a checkpoint is called before it is looked up."""
        name = name.removeprefix(self.prefix)
        for pattern, new in self.renames.items():
            name = re.sub(pattern, new, name)
        return name


@dataclass(frozen=True, slots=True)
class Layout:
    """How stored tensors are rearranged for llama.cpp; maps are keyed by gguf's MODEL_TENSOR or an own name."""

    # numbered tensors that become one
    stacks: tuple[Stack, ...] = ()
    # ending of a fused tensor's name -> endings of its parts, and how those are cut out of it
    splits: Mapping[str, Mapping[str, Cut]] = field(default_factory=dict)
    # tensors that get the shape in RequiredTensors, with the same numbers in the same order
    reshaped: tuple[str, ...] = ()
    row_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    # the order of the numbers of each row
    column_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    value_maps: Mapping[str, ValueMap] = field(default_factory=dict)
    # value maps for tensors of integers
    number_maps: Mapping[str, NumberMap] = field(default_factory=dict)
    # multipliers that transformers applies as it computes, and llama.cpp expects in the weights
    row_factors: Mapping[str, RowFactors] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """How config.json is read, and what llama.cpp's graph assumes of it."""

    # objects in the config whose settings count as the config's own
    sections: tuple[str, ...] = ()
    # this class's names of settings -> the usual ones
    aliases: Mapping[str, str] = field(default_factory=dict)
    # values of missing settings, beside those of the HF class in class_defaults.json
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # setting -> the value that llama.cpp assumes, or a function of the config that gives it: a checkpoint with another
    # value would run and generate nonsense
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def plus(
        self, defaults: Mapping[str, Any] = MappingProxyType({}), assumed: Mapping[str, Any] = MappingProxyType({})
    ) -> Settings:
        """Return the settings of a relative, which has these in addition or instead of those of the same name."""
        return replace(self, defaults={**self.defaults, **defaults}, assumed={**self.assumed, **assumed})


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Metadata rows, by their whole keys, that follow from the tensors of a checkpoint."""

    # row -> ending of the tensor of each layer that holds one of its numbers
    layer_numbers: Mapping[str, str] = field(default_factory=dict)
    # row -> beginning of the tensors whose presence it states
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that converting some HF classes takes. A relative is a `replace(...)` of an entry or of its parts."""

    hf_classes: tuple[str, ...]
    # llama.cpp's name for them
    gguf_name: str
    hyperparameters: tuple[Hyperparameter, ...]
    tensors: RequiredTensors
    names: TensorNames = TensorNames()
    layout: Layout = Layout()
    settings: Settings = Settings()
    metadata_of_tensors: TensorMetadata = TensorMetadata()
    # whether it drafts for another model, whose vocabulary it has; the config's section "target" is about that model
    is_draft_head: bool = False
    # llama.cpp's names of the linear modules of sentence-transformers behind the pooling, in their order
    dense_modules: tuple[str, ...] = ()
    # weights (without their layer) that llama.cpp multiplies without adapters
    unadapted: tuple[str, ...] = ()
    # the entry for some configs of a class that llama.cpp has several names for
    variant: Callable[[Config], Architecture | None] = lambda _config: None
    # all that `variant` returns, to be found by llama.cpp's name
    variants: tuple[Architecture, ...] = ()
    # differences between llama.cpp's computation and the original, as warnings
    approximations: Callable[[Config], tuple[str, ...]] = lambda _config: ()


_MAX_LAYERS = 512


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not null."""
    return {key: value for key, value in values.items() if value is not None}


def unfolded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a whole, where those of the part that answers may be in a section beside what speaks."""
    return {**given(values), **given(Config(values).section("thinker_config").values)}


def usually_named(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings, under their usual names too."""
    return {name: values[alias] for alias, name in aliases.items() if alias in values} | dict(values)


def check_settings(architecture: Architecture, config: Config, switched_off: Collection[str] = ()) -> None:
    """Raise CheckpointError for an impossible number of layers, or a setting that llama.cpp would not follow; those
    `switched_off` are null in config.json, which is not their default."""
    n_layers = config.integer("num_hidden_layers")
    if not 0 < n_layers <= _MAX_LAYERS:
        raise CheckpointError(f"config.json has num_hidden_layers = {n_layers}.", "Check config.json.")
    kinds = config.values.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise CheckpointError("layer_types in config.json is not a list of names.", "Check layer_types.")
    for key, assumed in architecture.settings.assumed.items():
        value, expected = config.values.get(key), assumed(config) if callable(assumed) else assumed
        is_off = key in switched_off and value is None and expected is not None
        if is_off or (value is not None and value != expected):
            shown = "null" if is_off else str(value)[:64]
            raise CheckpointError(
                f"config.json has {key} = {shown}, which llama.cpp does not support for this architecture.",
                "Choose another model.",
            )
