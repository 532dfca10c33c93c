"""LoRA adapters, validated against their model before a native loader reads them.

Owns the checks of kind and shape: every pair of matrices must fit a weight of the model. llama.cpp leaves some of these
shapes unchecked and aborts on a number of the wrong type. Independent of scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from quantizer.gguf.errors import ModelFileError
from quantizer.gguf.gguf_reader import invalid_gguf
from quantizer.gguf.header import Header, TensorInfo, read_header
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.gguf.validation import tensors_of

Shape = tuple[int, ...]

_ALPHA = "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"
_EMBEDDING = "token_embd.weight"
_FLOAT32 = 6
_TYPES = {tensor_type_named(name).type_id for name in ("F32", "F16", "BF16", "Q8_0")}


def validate_adapter(path: Path, model: Path) -> Header:
    """Read the header of the LoRA at `path` and check it against the validated GGUF `model`.

    Raises ModelFileError naming the first fault, or that it was made for another model.
    """
    header, base = read_header(path), read_header(model)
    kind, method = header.text("general.type"), header.text("adapter.type")
    if (kind, method) != ("adapter", "lora"):
        raise ModelFileError(
            f"{path.name} is no LoRA adapter.", "Make one with `localllm quantize ADAPTER F16 --base MODEL`."
        )
    if header.architecture != base.architecture:
        cause = (
            f"{path.name} is an adapter for {header.architecture[:64]!r} models; {model.name} is {base.architecture!r}."
        )
        raise ModelFileError(cause, "Name an adapter that was made for this model.")
    for fault in _faults(header):
        raise invalid_gguf(path.name, fault)
    for fault in _misfits(header, {tensor.name: tensor.shape for tensor in tensors_of(base)}):
        raise ModelFileError(f"{path.name} does not fit {model.name}: {fault}.", "Name an adapter made for this model.")
    return header


def _faults(header: Header) -> Iterator[str]:
    if alpha := header.fields.get(_ALPHA):
        is_number = alpha.type_id == _FLOAT32 and isinstance(alpha.value, float) and math.isfinite(alpha.value)
        if not is_number:
            yield f"{_ALPHA} is no number"
    if _INVOCATION in header.fields:
        yield "it is switched on by tokens of the prompt (aLoRA), which is not served"
    for tensor in header.tensors:
        if _part(tensor.name) and tensor.type_id not in _TYPES:
            yield f"the tensor {tensor.name!r} has a type that no adapter has"
        if not _part(tensor.name) and not tensor.name.endswith("_norm.weight"):
            yield f"the tensor {tensor.name!r} is no part of a LoRA"


def _misfits(header: Header, weights: Mapping[str, Shape]) -> Iterator[str]:
    pairs: dict[str, dict[str, TensorInfo]] = {}
    for tensor in header.tensors:
        if part := _part(tensor.name):
            pairs.setdefault(tensor.name.removesuffix(f".lora_{part}"), {})[part] = tensor
    if not pairs:
        yield "it changes no weight"
    for name, pair in pairs.items():
        if name not in weights:
            yield f"the model has no tensor {name!r}"
        elif len(pair) != 2:
            yield f"one of the two matrices for {name!r} is missing"
        elif not fits(name, weights[name], pair["a"].shape, pair["b"].shape):
            yield f"its matrices for {name!r} have other shapes"


def _part(name: str) -> str:
    return next((part for part in "ab" if name.endswith(f".lora_{part}")), "")


def fits(name: str, weight: Shape, a: Shape, b: Shape) -> bool:
    """Return whether b·a has the shape of the weight; llama.cpp stores `a` transposed for the embedding."""
    if min(len(weight), len(a), len(b)) < 2:
        return False
    if name == _EMBEDDING:
        return (b[1], a[1]) == weight[:2] and a[0] == b[0]
    return (a[0], b[1]) == weight[:2] and a[1] == b[0] and _rest(a) == _rest(b) == _rest(weight)


def _rest(shape: Shape) -> Shape:
    """Return the dimensions past the first two, without those of length 1, which experts have."""
    return tuple(length for length in shape[2:] if length != 1)
