"""The GGUF header that a checkpoint would be converted to, from its config.json alone.

Owns what is known of a model before any of its weights: shapes and hyperparameters, without vocabulary or names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture, find_architecture, needed_tensors
from quantizer.architectures.architecture import Hyperparameter
from quantizer.checkpoint.config import Config
from quantizer.errors import CheckpointError
from quantizer.gguf.header import Header, planned_header
from quantizer.gguf.header_encoder import Entry, OutputTensor, encode_entry, encode_header, file_bytes
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.tensor_categories import allows_quantization

__all__ = ["config_header", "hyperparameter_entries"]


def config_header(settings: Mapping[str, Any], name: str) -> Header:
    """Return the header of the F16 GGUF that a checkpoint with this config.json, called `name`, would become.

    Raises CheckpointError for an architecture that cannot be converted and for settings that make no sense.
    """
    architecture, config = find_architecture(dict(settings))
    tensors = [
        _tensor(tensor_name, shape, architecture.gguf_name)
        for tensor_name, shape in needed_tensors(architecture, config).items()
    ]
    try:
        entries = list(hyperparameter_entries(architecture, config, architecture.hyperparameters))
    except (struct.error, OverflowError) as error:
        raise CheckpointError(
            f"config.json of {name} has a number that no GGUF holds.", "Check config.json."
        ) from error
    head = encode_header([encode_entry("general.architecture", architecture.gguf_name, "str"), *entries], tensors)
    return planned_header(head, file_bytes(head, tensors), Path(f"{name}.gguf"))


def hyperparameter_entries(
    architecture: Architecture, config: Config, rows: Iterable[Hyperparameter]
) -> Iterator[Entry]:
    """Yield the entries of `rows` for `config`, without those that have no value."""
    for row in rows:
        value = row.read(config)
        if value is not None:
            yield encode_entry(f"{architecture.gguf_name}.{row.key}", value, row.type_name)


def _tensor(name: str, shape: tuple[int, ...], architecture: str) -> OutputTensor:
    kind = "F16" if allows_quantization(name, shape, architecture) else "F32"
    return OutputTensor(name, shape, tensor_type_named(kind))
