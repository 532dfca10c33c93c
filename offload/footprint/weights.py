"""Weights by input, layers and output, as llama.cpp groups them: bytes stored, and bytes read for a token. Pure.

Owns the grouping, and which tensors a token reads; `profile` adds the cache of each layer. Independent of devices.
Source: `load_tensors` in src/llama-model.cpp and the tensor table of src/llama-arch.cpp, as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from offload.speed.host_work import unpacking_bytes
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_OPERATIONS_PER_WEIGHT = 2
_EXPERTS = "_exps."  # tensors that hold all experts of a layer, one behind the other


def weight_bytes_per_token(header: Header, tensors: Sequence[TensorInfo]) -> int:
    """Return the bytes that decoding one token reads of `tensors`, those of all files of the model.

    Of the embedding that is one row, unless it is the output too; of experts it is the share that is used.
    """
    has_output = any(tensor.name == OUTPUT for tensor in tensors)
    return sum(
        tensor.n_bytes if tensor.name == EMBEDDING and not has_output else _bytes_read(tensor, header)
        for tensor in tensors
    )


def _is_of_experts(name: str) -> bool:
    """Return whether the tensor `name` holds all the experts of a layer."""
    return _EXPERTS in name


def _bytes_read(tensor: TensorInfo, header: Header) -> int:
    """Return the bytes that one token reads of `tensor`; of the input embedding that is one row."""
    if tensor.name == EMBEDDING:
        return tensor.n_bytes // tensor.shape[-1]
    if _is_of_experts(tensor.name):
        n_experts = header.integer(f"{header.architecture}.expert_count") or 1
        n_used = header.integer(f"{header.architecture}.expert_used_count") or n_experts
        return tensor.n_bytes * n_used // n_experts
    return tensor.n_bytes


_ALIGNMENT = 32  # of tensors in a buffer of the CPU; a file's own alignment comes to the same
_LAYER = re.compile(r"blk\.(\d+)\.")
_FEED_FORWARD = re.compile(r"\.ffn_(gate|up|down|gate_up)\.weight$")
_INPUTS = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer, a part of one, the inputs, or the output behind the last layer: bytes stored, and the work of a token.

    `movable_bytes` of the weights, and what a token reads of them, can stay with the processor when the rest goes to a
    GPU: experts, or a dense feed-forward. `read_bytes` are weights, `cache_read_bytes` what attention reads behind so
    many tokens. `unpacking_bytes` and `attention_bytes` are what a processor could read meanwhile, see `host_work`.
    """

    weight_bytes: int = 0
    read_bytes: int = 0
    movable_bytes: int = 0
    movable_read_bytes: int = 0
    cache_bytes: int = 0
    cache_read_bytes: int = 0
    operations: float = 0
    unpacking_bytes: float = 0.0
    movable_unpacking_bytes: float = 0.0
    attention_bytes: float = 0.0

    @property
    def work_bytes(self) -> float:
        """The time that its weights keep a processor busy for one token, in bytes read."""
        return self.read_bytes + self.unpacking_bytes

    @property
    def movable_work_bytes(self) -> float:
        """Those of the movable part."""
        return self.movable_read_bytes + self.movable_unpacking_bytes


@dataclass(frozen=True, slots=True)
class WeightTable:
    """All weights of a model. The input stays with the CPU wherever the layers go.

    Where `is_tied` the output matrix is the embedding: `output` counts it as read, and `tied_bytes` is what a device
    that has the output holds once more.
    """

    input: Layer
    layers: tuple[Layer, ...]
    output: Layer
    tied_bytes: int
    has_experts: bool


def weights_of(header: Header, tensors: Sequence[TensorInfo], *, has_mtp_layer: bool = False) -> WeightTable:
    """Group `tensors`, those of all files of the model, of which `header` is the first.

    Layers that only predict are empty unless it `has_mtp_layer`: llama.cpp counts them, and loads them to draft with
    them.
    """
    n_all = hyperparameter(header, "block_count")
    n_loaded = n_all if has_mtp_layer else n_all - hyperparameter(header, "nextn_predict_layers")
    inputs: list[TensorInfo] = []
    outputs: list[TensorInfo] = []
    layers: list[list[TensorInfo]] = [[] for _ in range(n_all)]
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None:
            (inputs if tensor.name.startswith(_INPUTS) else outputs).append(tensor)
        elif int(match[1]) < n_loaded:
            layers[int(match[1])].append(tensor)
    has_experts = any(_is_of_experts(tensor.name) for tensor in tensors)
    output = _group(outputs, header, has_experts)
    tied_bytes = 0
    if not any(tensor.name == OUTPUT for tensor in outputs):
        embeddings = [tensor for tensor in inputs if tensor.name == EMBEDDING]
        tied_bytes = sum(_padded(tensor.n_bytes) for tensor in embeddings)
        output = replace(
            output,
            read_bytes=output.read_bytes + tied_bytes,
            operations=output.operations + _OPERATIONS_PER_WEIGHT * sum(tensor.n_elements for tensor in embeddings),
            unpacking_bytes=output.unpacking_bytes + sum(unpacking_bytes(tensor) for tensor in embeddings),
        )
    groups = tuple(_group(layer, header, has_experts) for layer in layers)
    return WeightTable(_group(inputs, header, has_experts), groups, output, tied_bytes, has_experts)


def _group(tensors: Iterable[TensorInfo], header: Header, has_experts: bool) -> Layer:
    weight_bytes = read = movable = movable_read = n_active = 0
    unpacking = movable_unpacking = 0.0
    for tensor in tensors:
        size, n_read = _padded(tensor.n_bytes), _bytes_read(tensor, header)
        weight_bytes, read = weight_bytes + size, read + n_read
        n_active += tensor.n_elements * n_read // tensor.n_bytes
        unpacked = unpacking_bytes(tensor, n_read / tensor.n_bytes)
        unpacking += unpacked
        if _is_of_experts(tensor.name) if has_experts else _FEED_FORWARD.search(tensor.name):
            movable, movable_read = movable + size, movable_read + n_read
            movable_unpacking += unpacked
    return Layer(
        weight_bytes=weight_bytes,
        read_bytes=read,
        movable_bytes=movable,
        movable_read_bytes=movable_read,
        operations=_OPERATIONS_PER_WEIGHT * n_active,
        unpacking_bytes=unpacking,
        movable_unpacking_bytes=movable_unpacking,
    )


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
