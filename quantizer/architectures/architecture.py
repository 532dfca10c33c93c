"""An entry of the table of architectures: everything that converting one HF class takes, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quantizer.architectures.shapes import Dimensions, LayerTensors, Stack, decoder
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, NumberMap, RowFactors, RowOrder, ValueMap
from quantizer.convert.source_model import SourceTensor

Value: TypeAlias = int | float | str | bool | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One metadata row: `key` follows "<architecture>.", `read` takes it from the config (None: leave it out)."""

    key: str
    type_name: str
    read: Callable[[Config], Value]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that converting some HF classes takes; `gguf_name` is llama.cpp's name for them.

    The maps of transforms are keyed by gguf's MODEL_TENSOR names, of `own_names` by llama.cpp's.
    """

    hf_classes: tuple[str, ...]
    gguf_name: str
    hyperparameters: tuple[Hyperparameter, ...]
    # required tensors: of each layer, and outside the layers
    layer_tensors: LayerTensors
    model_tensors: Callable[[Config], Dimensions] = decoder
    # what llama.cpp's names of the tensors of a layer begin with, before its number
    blocks: str = "blk"
    # those that need not be there
    optional_tensors: Callable[[Config], Dimensions] = lambda _config: {}
    # the architecture whose tensor names gguf's map has, where it lacks this one
    names_of: str = ""
    # names that gguf's map lacks too, in its form: of the source -> of llama.cpp, {bid} being the number of the layer
    own_names: Mapping[str, str] = field(default_factory=dict)
    # numbers that names may have, where there are fewer layers
    n_numbers: int = 0
    row_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    # the same for the numbers of each row
    column_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    value_maps: Mapping[str, ValueMap] = field(default_factory=dict)
    # the same for tensors of whole numbers, which are none elsewhere
    number_maps: Mapping[str, NumberMap] = field(default_factory=dict)
    # multipliers that transformers applies as it computes, and llama.cpp expects in the weights
    row_factors: Mapping[str, RowFactors] = field(default_factory=dict)
    # tensors that get the table's shape, with the same numbers in the same order
    reshaped: tuple[str, ...] = ()
    # ending of a fused tensor's name -> endings of its parts, and how those are cut out of it
    splits: Mapping[str, Mapping[str, Cut]] = field(default_factory=dict)
    stacks: tuple[Stack, ...] = ()
    # row of metadata (with its whole key) -> ending of the tensor of each layer that holds one of its numbers
    layer_numbers: Mapping[str, str] = field(default_factory=dict)
    # row of metadata (with its whole key) -> beginning of the tensors of which it tells whether they are there
    tensor_flags: Mapping[str, str] = field(default_factory=dict)
    # None: none, and a rope scaling that needs some is refused
    generate: Callable[[Config], Sequence[SourceTensor]] | None = None
    # tensors that llama.cpp reads although it does not use them -> those that are written where a checkpoint lacks them
    borrowed: Callable[[Config], Mapping[str, str]] = lambda _config: {}
    # endings of llama.cpp's names beyond .weight and .bias
    suffixes: tuple[str, ...] = ()
    # endings of source tensors that the runtime computes itself
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
    # prefix of the names of the body in a class with a head
    prefix: str = ""
    # regular expressions of source names -> the names that gguf's map has, one after the other
    renames: Mapping[str, str] = field(default_factory=dict)
    # beginnings of the names, without the prefix, of tensors for training only
    unused: tuple[str, ...] = ()
    # parts of a vision model that do not belong to the language model
    skipped_modules: tuple[str, ...] = ()
    # whether layers beyond the last, which predict several tokens, are left out
    leaves_later_layers: bool = False
    # whether the first of them stays where it is the only one
    keeps_prediction_layer: bool = False
    # whether it drafts for another model, whose vocabulary it has; the config's section "target" is about that model
    is_draft_head: bool = False
    # objects in the config whose settings count as the config's own
    sections: tuple[str, ...] = ()
    # this class's names of settings -> the usual ones
    aliases: Mapping[str, str] = field(default_factory=dict)
    # the HF class's values of missing settings
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # values that llama.cpp assumes: a checkpoint with others would run and generate nonsense
    assumed: Mapping[str, Callable[[Config], Any]] = field(default_factory=dict)
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


def check_settings(architecture: Architecture, config: Config) -> None:
    """Raise CheckpointError for an impossible number of layers, or a setting that llama.cpp would not follow."""
    n_layers = config.integer("num_hidden_layers")
    if not 0 < n_layers <= _MAX_LAYERS:
        raise CheckpointError(f"config.json has num_hidden_layers = {n_layers}.", "Check config.json.")
    for key, expected in architecture.assumed.items():
        value = config.values.get(key)
        if value is not None and value != expected(config):
            raise CheckpointError(
                f"config.json has {key} = {str(value)[:64]}, which llama.cpp does not support for this architecture.",
                "Choose another model.",
            )
