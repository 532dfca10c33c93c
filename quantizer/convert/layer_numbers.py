"""Numbers that a checkpoint stores as tensors, one in each layer, and that llama.cpp reads from the metadata.

They are the only values of tensors that are read for a plan: a few bytes of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from quantizer.architectures import Architecture
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.header_encoder import Entry, encode_entry
from quantizer.write.dtype_conversion import to_float32

_PLAIN = ("F32", "F16", "BF16")


def layer_number_entries(
    tensors: Mapping[str, FileTensor], config: Config, architecture: Architecture
) -> Iterator[Entry]:
    """Yield a row of metadata with the numbers of all layers for each of the architecture's `layer_numbers`.

    Raises CheckpointError naming a number that is missing or is none, ModelFileError when a file cannot be read.
    """
    for key, ending in architecture.layer_numbers.items():
        names = (f"model.layers.{i}{ending}" for i in range(config.integer("num_hidden_layers")))
        yield encode_entry(key, [_number(tensors, name) for name in names], "f32[]")


def _number(tensors: Mapping[str, FileTensor], name: str) -> float:
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"The checkpoint lacks {name}.", "Download the whole checkpoint.")
    if math.prod(tensor.shape) != 1 or tensor.stored.name not in _PLAIN:
        raise CheckpointError(f"The tensor {name} is not a single number.", "Download the checkpoint again.")
    value = float(to_float32(b"".join(tensor.slabs(1)), tensor.stored, 1).item())
    if not math.isfinite(value):
        raise CheckpointError(f"The tensor {name} is {value}.", "Download the checkpoint again.")
    return value
