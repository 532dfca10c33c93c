"""Files that change a loaded model, LoRA adapters and control vectors, validated against that model.

llama.cpp leaves some shapes of an adapter unchecked and aborts on a number of the wrong type, so every pair of matrices
must fit a weight of the model. Control vectors, which no native loader reads, are directions that are added to the
hidden state between layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.gguf.gguf_reader import ModelFileError, invalid_gguf
from quantizer.gguf.header import Header, TensorInfo, read_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.gguf.validation import tensors_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Shape = tuple[int, ...]

_ALPHA = "adapter.lora.alpha"
_FLOAT32 = 6
_ADAPTER_TYPES = {tensor_type_named(name).type_id for name in ("F32", "F16", "BF16", "Q8_0")}
_DIRECTION = re.compile(r"direction\.([1-9]\d{0,3})")
_F32 = tensor_type_named("F32").type_id


def validate_adapter(path: Path, model: Path) -> Header:
    """Read the header of the LoRA at `path` and check it against the validated GGUF `model`.
    Raises ModelFileError naming the first fault, or that it was made for another model."""
    header, base = read_header(path), read_header(model)
    if (header.text("general.type"), header.text("adapter.type")) != ("adapter", "lora"):
        raise ModelFileError(
            f"{path.name} is not a LoRA adapter.", "Make one with `localllm quantize ADAPTER F16 --base MODEL`."
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


def read_control_vector(path: Path, model: Path) -> NDArray[np.float32]:
    """Return the directions in the file at `path` for the validated GGUF `model`. Shape (n_layers - 1, n_embd): row i
    is added after layer i + 1 (counted from 0), zeros where the file has none. Raises ModelFileError for a file that is
    not a control vector or was made for another model."""
    import numpy as np  # 0.3 s, which a service without control vectors does not need

    header, base = read_header(path), read_header(model)
    if header.architecture != "controlvector":
        raise ModelFileError(
            f"{path.name} is not a control vector.", "Make one with llama.cpp's llama-cvector-generator."
        )
    n_layers = hyperparameter(base, "block_count") or 1
    n_embd = hyperparameter(base, "embedding_length")
    directions = np.zeros((n_layers - 1, n_embd), np.float32)
    for tensor in header.tensors:
        match = _DIRECTION.fullmatch(tensor.name)
        if match is None or tensor.type_id != _F32 or len(tensor.shape) != 1:
            raise invalid_gguf(path.name, f"the tensor {tensor.name!r} is not a direction")
        layer = int(match[1])
        if layer >= n_layers or tensor.shape != (n_embd,):
            raise ModelFileError(
                f"{path.name} has {tensor.shape[0]} numbers for layer {layer}; {model.name} has {n_layers} layers of "
                f"{n_embd}.",
                "Name a control vector that was made for this model.",
            )
        directions[layer - 1] = np.frombuffer(header.tensor_bytes(tensor), "<f4")
    if not np.isfinite(directions).all():
        raise invalid_gguf(path.name, "a direction contains NaN or infinite numbers")
    if not directions.any():
        raise invalid_gguf(path.name, "it contains no direction")
    return directions


def _faults(header: Header) -> Iterator[str]:
    if (alpha := header.fields.get(_ALPHA)) and not (
        alpha.type_id == _FLOAT32 and isinstance(alpha.value, float) and math.isfinite(alpha.value)
    ):
        yield f"{_ALPHA} is not a number"
    if "adapter.alora.invocation_tokens" in header.fields:
        yield "tokens of the prompt activate it (aLoRA), which is not supported"
    for tensor in header.tensors:
        if _part(tensor.name) and tensor.type_id not in _ADAPTER_TYPES:
            yield f"the tensor {tensor.name!r} has a type that adapters do not use"
        if not _part(tensor.name) and not tensor.name.endswith("_norm.weight"):
            yield f"the tensor {tensor.name!r} is not part of a LoRA"


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
        elif is_output_too(name, weights):
            yield "it changes the embedding, which is the output of this model too, and llama.cpp would abort"


def is_output_too(name: str, weights: Container[str]) -> bool:
    """Return whether `name` is an embedding that a decoder without a matrix for its output multiplies with, too.
    llama.cpp finds its adapter by name there, whose first matrix lies the other way (`build_lora_mm` in
    src/llama-graph.cpp, 0.3.36), and ends the process."""
    return name == "token_embd.weight" and "output_norm.weight" in weights and "output.weight" not in weights


def _part(name: str) -> str:
    return next((part for part in "ab" if name.endswith(f".lora_{part}")), "")


def fits(name: str, weight: Shape, a: Shape, b: Shape) -> bool:
    """Return whether b·a has the shape of the weight; llama.cpp stores `a` transposed for the embedding."""
    if min(len(weight), len(a), len(b)) < 2:
        return False
    if name == "token_embd.weight":
        return (b[1], a[1]) == weight[:2] and a[0] == b[0]
    # past the first two dimensions, those of length 1, which experts have, do not count
    rests = {tuple(length for length in shape[2:] if length != 1) for shape in (weight, a, b)}
    return (a[0], b[1]) == weight[:2] and a[1] == b[0] and len(rests) == 1
