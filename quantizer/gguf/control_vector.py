"""Control vectors: GGUF files of directions that are added to the hidden state between layers.

Owns reading and checking them; no native loader reads such a file. Independent of engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantizer.gguf.errors import ModelFileError
from quantizer.gguf.gguf_reader import invalid_gguf
from quantizer.gguf.header import read_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.tensor_types import tensor_type_named

_KIND = "controlvector"
_NAME = re.compile(r"direction\.([1-9]\d{0,3})")
_F32 = tensor_type_named("F32").type_id


def read_control_vector(path: Path, model: Path) -> NDArray[np.float32]:
    """Return the directions in the file at `path` for the validated GGUF `model`.

    Shape (n_layers - 1, n_embd): row i is added after layer i + 1 (counted from 0), zeros where the file has none.
    Raises ModelFileError for a file that is no control vector or was made for another model.
    """
    header, base = read_header(path), read_header(model)
    if header.architecture != _KIND:
        raise ModelFileError(f"{path.name} is no control vector.", "Make one with llama.cpp's llama-cvector-generator.")
    n_layers = hyperparameter(base, "block_count") or 1
    n_embd = hyperparameter(base, "embedding_length")
    directions = np.zeros((n_layers - 1, n_embd), np.float32)
    for tensor in header.tensors:
        match = _NAME.fullmatch(tensor.name)
        if match is None or tensor.type_id != _F32 or len(tensor.shape) != 1:
            raise invalid_gguf(path.name, f"the tensor {tensor.name!r} is no direction")
        layer = int(match[1])
        if layer >= n_layers or tensor.shape != (n_embd,):
            raise ModelFileError(
                f"{path.name} has {tensor.shape[0]} numbers for layer {layer}; {model.name} has {n_layers} layers of "
                f"{n_embd}.",
                "Name a control vector that was made for this model.",
            )
        directions[layer - 1] = np.frombuffer(header.tensor_bytes(tensor), "<f4")
    if not np.isfinite(directions).all():
        raise invalid_gguf(path.name, "one of its directions is not a number")
    if not directions.any():
        raise invalid_gguf(path.name, "it has no direction")
    return directions
