"""What an entry of the table of architectures says: everything that converting one HF class takes, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import Cut
from quantizer.convert.source_model import GeneratedTensor
from quantizer.convert.transforms import RowOrder, ValueMap

__all__ = ["Architecture", "Dimensions", "Hyperparameter", "LayerTensors", "Stack", "Value"]

Value: TypeAlias = int | float | str | bool | Sequence[bool] | Sequence[int] | Sequence[str] | None
# Tensor name -> its dimensions in ggml order, each a number or a name of `quantizer.architectures.shapes.DIMENSIONS`.
Dimensions: TypeAlias = Mapping[str, tuple[str | int, ...]]
# The tensors of every layer, or what says for the config and the number of a layer which ones it has.
LayerTensors: TypeAlias = Dimensions | Callable[[Config, int], Dimensions]


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One metadata row: `key` follows "<architecture>.", `read` takes it from the config (None: leave it out)."""

    key: str
    type_name: str
    read: Callable[[Config], Value]


@dataclass(frozen=True, slots=True)
class Stack:
    """Tensors numbered after `container` that llama.cpp wants as one: `x<container>7.y` is slice 7 of `x<merged>y`."""

    container: str
    merged: str
    count: Callable[[Config], int]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that converting some HF classes takes; `gguf_name` is llama.cpp's name for them.

    The maps of transforms are keyed by gguf's MODEL_TENSOR names.
    """

    hf_classes: tuple[str, ...]
    gguf_name: str
    hyperparameters: tuple[Hyperparameter, ...]
    # the tensors that must be there: of the whole model, and of each layer
    model_tensors: Callable[[Config], Dimensions]
    layer_tensors: LayerTensors
    row_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    # the same for the numbers of each row
    column_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    value_maps: Mapping[str, ValueMap] = field(default_factory=dict)
    # those that take the shape that the table says, with the same numbers in the same order
    reshaped: tuple[str, ...] = ()
    # ending of a fused tensor's name -> endings of its parts, and how those are cut out of it
    splits: Mapping[str, Mapping[str, Cut]] = field(default_factory=dict)
    stacks: tuple[Stack, ...] = ()
    generate: Callable[[Config], list[GeneratedTensor]] = lambda _config: []
    # endings of source tensors that the runtime computes itself
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
    # what a class with a head puts before the names of its body
    prefix: str = ""
    # beginnings of the names, without the prefix, of what only training needed
    unused: tuple[str, ...] = ()
    # of a model that also sees: what stays behind, and is no part of the language model
    skipped_modules: tuple[str, ...] = ()
    # whether layers beyond the last, which guess several tokens ahead, may be there and stay behind
    leaves_later_layers: bool = False
    # settings under names of their own -> what other classes call them
    aliases: Mapping[str, str] = field(default_factory=dict)
    # what the HF class takes a missing setting for
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # what llama.cpp takes for granted: a checkpoint that says otherwise would run, and answer nonsense
    assumed: Mapping[str, Callable[[Config], Any]] = field(default_factory=dict)
    # weights (without their layer) that llama.cpp multiplies with no regard for adapters
    unadapted: tuple[str, ...] = ()
    # what llama.cpp computes a little differently than the original, in sentences to warn with
    approximations: Callable[[Config], tuple[str, ...]] = lambda _config: ()
